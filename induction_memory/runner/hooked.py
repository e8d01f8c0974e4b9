"""The definition: patches as TransformerLens hooks, one forward per variant.

It runs any HookedTransformer, and a TransformerBridge by the names that both share. The user's hooks run first, and
patches act on their results. With `amount` a, and y the activation of the model with the user's hooks at a site,

    writer or q, k, v of a head     y  <-  y + a (value - y)
    edge writer -> input            x_input  <-  x_input + a (value - y_writer)

TransformerLens computes the output and the inputs of a single head only if flags are set. They are set for the run and
then restored. A user's hook at a point that only these flags activate does not run.

Some bridges do not offer hooks on the inputs of single heads. If queries, keys and values are linear in the normalised
stream, y = norm(x) W + b, an edge that changes the stream of one input from x to x' changes y by

    (norm(x') - norm(x)) W

which is added at `hook_q`, `hook_k` or `hook_v`. A short run checks this linearity first.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from induction_memory.errors import InputError, require
from induction_memory.runner.components import ARROW, Graph, head_of
from induction_memory.runner.recording import Patches, Recording, Variant, Via, require_length, take
from induction_memory.runner.support import asleep, keep, unreadable
from induction_memory.runner.weights import parameters, replaced


@dataclass(frozen=True, eq=False)
class Projection:
    """How a layer computes queries, keys and values from the stream."""

    norm: Callable[[Tensor], Tensor]
    matrices: Mapping[str, Float[Tensor, "head d_model d_head"]]
    """q, k and v."""

    def change(
        self, letter: str, head: int, before: Float[Tensor, "batch pos d"], after: Float[Tensor, "batch pos d"]
    ) -> Float[Tensor, "batch pos d_head"]:
        """The change of a head's queries, keys or values; heads count from 0."""
        return (self.norm(after) - self.norm(before)) @ self.matrices[letter][head]


def projections(model: Any) -> tuple[Projection, ...]:
    """The projections of each layer; an InputError if queries, keys and values are not linear in the normed stream."""
    kept: dict[str, Tensor] = {}
    names = [
        f"blocks.{layer}.{point}"
        for layer in range(model.cfg.n_layers)
        for point in ("hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v")
    ]
    tokens = torch.arange(min(4, model.cfg.n_ctx, model.cfg.d_vocab), device=next(model.parameters()).device)[None]
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(name, keep(kept, name)) for name in names])
        return tuple(_of_block(block, f"blocks.{layer}", kept) for layer, block in enumerate(model.blocks))


def _of_block(block: Any, name: str, kept: Mapping[str, Tensor]) -> Projection:
    norm = getattr(block, "ln1", None)
    plain: Any = nn.Identity() if norm is None else getattr(norm, "original_component", norm)
    found = Projection(plain, {letter: getattr(block.attn, f"W_{letter.upper()}").detach() for letter in "qkv"})
    stream = kept[f"{name}.hook_resid_pre"]
    for letter, W in found.matrices.items():
        own = kept[f"{name}.attn.hook_{letter}"]
        fits = own.dim() == 4 and own.shape[2] == W.shape[0]
        without_bias = torch.einsum("bpd,hde->bphe", plain(stream), W) if fits else own
        bias = own - without_bias  # equal at every position if the map is linear
        if not fits or not torch.allclose(bias, bias[:, :1].expand_as(bias), atol=1e-4):
            raise InputError(
                "model: expected one that offers use_split_qkv_input for patches of these sites, "
                f"or whose {letter} are linear in the normalised stream, got neither in {name}"
            )
    return found


Hook = tuple[str, Callable[..., Tensor | None]]

_changed: MutableMapping[Tensor, dict[str, Tensor]] = WeakTensorKeyDictionary()
"""z of a layer in a forward pass -> head -> the change of this head's output by earlier lists of hooks."""


def patch_hooks(
    graph: Graph, variant: Variant, W_O: Sequence[Tensor] = (), projected: Sequence[Projection] = ()
) -> list[Hook]:
    """The patches of a variant as hooks for `run_with_hooks`, in the order of the computation.

    A head's output is patched at `hook_result`; with `outputs`, the layers' W_O, it is computed from `hook_z` and the
    change is added at `hook_attn_out`. With the layers' `projections`, edges into heads change their queries, keys and
    values (`Projection`).
    """
    patches = Patches(variant)
    nodes, edges, sources, write, read = patches.nodes, patches.edges, patches.sources, patches.write, patches.read
    hooks: list[Hook] = []

    def add(point: str, names: Sequence[str], function: Callable[[str, Tensor], Tensor], by_head: bool) -> None:
        used = [name for name in names if (name in edges if function == read else name in nodes or name in sources)]
        if used:
            hooks.append((point, _by_head(function, used) if by_head else _whole(function, used[0])))

    add("hook_embed", ["embed"], write, False)
    add("hook_pos_embed", ["pos"], write, False)
    for layer in range(1, graph.n_layers + 1):
        block, heads = f"blocks.{layer - 1}", graph.heads_of(layer)
        for letter in "qkv":
            inputs = [f"{head}.{letter}" for head in heads]
            if projected:
                used = [name for name in inputs if name in edges]
                hooks += _by_projection(block, letter, projected[layer - 1], read, used) if used else []
            else:
                add(f"{block}.hook_{letter}_input", inputs, read, True)
            add(f"{block}.attn.hook_{letter}", inputs, write, True)
        if W_O:
            used = [head for head in heads if head in nodes or head in sources]
            hooks += _by_z(block, W_O[layer - 1], write, used) if used else []
        else:
            add(f"{block}.attn.hook_result", heads, write, True)
        add(f"{block}.hook_mlp_in", [f"FF{layer}"], read, False)
        add(f"{block}.hook_mlp_out", [f"FF{layer}"], write, False)
    add(f"blocks.{graph.n_layers - 1}.hook_resid_post", ["out"], read, False)
    return hooks


def _whole(function: Callable[[str, Tensor], Tensor], name: str) -> Callable[..., Tensor]:
    return lambda value, hook: function(name, value)


def _by_head(function: Callable[[str, Tensor], Tensor], names: Sequence[str]) -> Callable[..., Tensor]:
    def hook(value: Tensor, hook: Any) -> Tensor:
        parts = list(value.unbind(2))
        for name in names:
            head = head_of(name)[1] - 1
            parts[head] = function(name, parts[head])
        return torch.stack(parts, dim=2)

    return hook


def _by_z(block: str, W_O: Tensor, write: Callable[[str, Tensor], Tensor], heads: Sequence[str]) -> list[Hook]:
    """Hooks that patch outputs of some heads of a block, computed from z and the changes by earlier lists of hooks."""
    changes: list[Tensor] = []

    def note(z: Tensor, hook: Any) -> None:
        changes.clear()
        earlier = _changed.setdefault(z, {})
        for head in heads:
            own = z[:, :, head_of(head)[1] - 1] @ W_O[head_of(head)[1] - 1]
            own = own + earlier[head] if head in earlier else own
            changes.append(write(head, own) - own)
            earlier[head] = earlier[head] + changes[-1] if head in earlier else changes[-1]

    return [(f"{block}.attn.hook_z", note), (f"{block}.hook_attn_out", lambda out, hook: out + sum(changes))]


def _by_projection(
    block: str, letter: str, projection: Projection, read: Callable[[str, Tensor], Tensor], inputs: Sequence[str]
) -> list[Hook]:
    """Hooks that change the queries, keys and values that some heads of a block compute from the stream."""
    noted: list[Tensor] = []

    def note(stream: Tensor, hook: Any) -> None:
        noted[:] = [stream]

    def change(name: str, own: Tensor) -> Tensor:
        return own + projection.change(letter, head_of(name)[1] - 1, noted[0], read(name, noted[0]))

    return [(f"{block}.hook_resid_pre", note), (f"{block}.attn.hook_{letter}", _by_head(change, inputs))]


SPLIT = "use_split_qkv_input"
POINTS = {
    "use_attn_result": ("attn.hook_result",),
    SPLIT: ("hook_q_input", "hook_k_input", "hook_v_input"),
    "use_hook_mlp_in": ("hook_mlp_in",),
    "ungroup_grouped_query_attention": (),
}
"""TransformerLens's flag -> the hook points of a block that it activates."""


class HookedRunner:
    """Runs a TransformerLens model with the user's hooks on it."""

    via: Via = "hooks"

    def __init__(self, model: nn.Module, swapped: Mapping[str, Tensor] | None = None) -> None:
        self.model: Any = model
        self.graph = Graph.of(model)
        self._swapped = swapped or {}
        self._W_O: tuple[Tensor, ...] = ()
        if not _offers(model, "use_attn_result"):
            self._W_O = tuple(block.attn.W_O.detach() for block in self.model.blocks)

    @cached_property
    def _splits(self) -> bool:
        return _offers(self.model, SPLIT)

    @cached_property
    def _projections(self) -> tuple[Projection, ...]:
        return projections(self.model)

    @property
    def n_ctx(self) -> int:
        return self.model.cfg.n_ctx

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return parameters(self.model) | dict(self._swapped)

    @property
    def refusal(self) -> str | None:
        return unreadable(self.model)

    def record(self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None) -> Recording:
        """One forward with hooks; attention is recorded by another forward on first use."""
        runner = HookedRunner(self.model, {**self._swapped, **weights}) if weights else self
        require_length(tokens, self.n_ctx)
        tokens = tokens.to(next(self.model.parameters()).device)
        kept: dict[str, Tensor] = {}
        names = ["hook_embed", "hook_pos_embed"] if self.graph.positions else ["hook_embed"]
        for layer in range(1, self.graph.n_layers + 1):
            block = f"blocks.{layer - 1}."
            parts = ["hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z"]
            parts += [] if self._W_O else ["attn.hook_result"]
            parts += ["hook_attn_out", *["hook_mlp_out"] * (layer in self.graph.feed_forwards), "hook_resid_post"]
            names += [block + part for part in parts]
        with torch.no_grad():
            logits = runner._forward(tokens, [(name, keep(kept, name)) for name in names], self._flags())
        kept = {name: value.expand(len(tokens), *value.shape[1:]) for name, value in kept.items()}
        return Recording(runner, tokens, kept, logits, self._W_O)

    def run(
        self, recording: Recording, variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> Iterator[Float[Tensor, "batch m vocab"]]:
        flags = self._flags([patch.site for variant in variants for patch in variant])
        projected = self._projections if SPLIT in flags and not self._splits else ()
        flags = [flag for flag in flags if not (projected and flag == SPLIT)]
        for variant in variants:
            hooks = patch_hooks(self.graph, variant, self._W_O, projected)
            logits = self._forward(recording.tokens, hooks, flags)
            yield logits if queries is None else take(logits, queries)

    def pattern(self, recording: Recording, layer: int) -> Float[Tensor, "batch head query key"]:
        return self._patterns(recording.tokens, [layer])[0]

    def patterns(self, tokens: Int[Tensor, "batch pos"]) -> list[Float[Tensor, "batch head query key"]]:
        require_length(tokens, self.n_ctx)
        tokens = tokens.to(next(self.model.parameters()).device)
        return self._patterns(tokens, range(1, self.graph.n_layers + 1))

    def _patterns(
        self, tokens: Int[Tensor, "batch pos"], layers: Sequence[int]
    ) -> list[Float[Tensor, "batch head query key"]]:
        """The attention of some layers, by one forward."""
        kept, names = dict[str, Tensor](), [f"blocks.{layer - 1}.attn.hook_pattern" for layer in layers]
        with torch.no_grad():
            self._forward(tokens, [(name, keep(kept, name)) for name in names], [])
        return [kept[name] for name in names]

    def _forward(self, tokens: Tensor, hooks: Sequence[Hook], flags: Sequence[str]) -> Tensor:
        with replaced(self.model, self._swapped), separated(self.model, flags):
            return self.model.run_with_hooks(tokens, fwd_hooks=list(hooks))

    def _flags(self, sites: Sequence[str] | None = None) -> list[str]:
        """The flags for patches at these sites; without sites, the flags for a recording."""
        return [flag for flag in _flags(self.model, sites) if not (self._W_O and flag == "use_attn_result")]


def head_projections(model: nn.Module) -> tuple[Projection, ...]:
    """The projections for a model without hooks on the inputs of single heads; otherwise empty."""
    return () if _offers(model, SPLIT) else projections(model)


@contextmanager
def separated(model: Any, flags: Sequence[str]) -> Iterator[None]:
    """Inside the block the model has these flags; user's hooks that only these flags activate do not run."""
    new = [flag for flag in flags if not getattr(model.cfg, flag, False)]
    with ExitStack() as after:
        for flag in new:
            for layer in range(model.cfg.n_layers):
                for point in POINTS[flag]:
                    after.enter_context(asleep(model.hook_dict.get(f"blocks.{layer}.{point}")))
        for flag in new:
            _set(model, flag, True)
            after.callback(_set, model, flag, False)
        yield


def _flags(model: Any, sites: Sequence[str] | None = None) -> list[str]:
    """The flags for patches at these sites, or for a recording."""
    targets = [site.split(ARROW)[1] for site in sites or () if ARROW in site]
    heads = sites is None or any(_is_head(site.split(ARROW)[0]) for site in sites)
    reads = sites is None or any("." in site for site in sites)
    flags = ["use_attn_result"] if heads else []
    if any("." in target for target in targets):
        flags.append(SPLIT)
        points = [model.hook_dict.get(f"blocks.{layer}.hook_attn_in") for layer in range(model.cfg.n_layers)]
        if getattr(model.cfg, "use_attn_in", False) and any(point is not None and point.fwd_hooks for point in points):
            raise InputError(
                "model: expected hooks at hook_q_input, hook_k_input or hook_v_input, got some at hook_attn_in"
            )
    if any(target.startswith("FF") for target in targets):
        flags.append("use_hook_mlp_in")
    if reads and getattr(model.cfg, "n_key_value_heads", None) not in (None, model.cfg.n_heads):
        flags += _ungrouped(model)
    return flags


def _ungrouped(model: Any) -> list[str]:
    """Give every head its own keys and values, if heads share them."""
    points = [f"blocks.{layer}.attn.hook_{letter}" for layer in range(model.cfg.n_layers) for letter in "kv"]
    points += [f"blocks.{layer}.hook_{letter}_input" for layer in range(model.cfg.n_layers) for letter in "kv"]
    hooked = [name for name in points if name in model.hook_dict and model.hook_dict[name].fwd_hooks]
    asked = getattr(model.cfg, "ungroup_grouped_query_attention", False)
    require(asked or not hooked, "model", "ungroup_grouped_query_attention set, as heads share keys", ", ".join(hooked))
    return ["ungroup_grouped_query_attention"]


def _set(model: Any, flag: str, value: bool) -> None:
    setter = getattr(model, f"set_{flag}", None)
    try:
        setattr(model.cfg, flag, value) if setter is None else setter(value)
    except (NotImplementedError, ValueError) as error:
        raise InputError(f"model: expected one that offers {flag} for patches of these sites, got {error}") from error


def _offers(model: Any, flag: str) -> bool:
    """Whether a model has a flag: some bridges do not."""
    before = bool(getattr(model.cfg, flag, False))
    try:
        _set(model, flag, True)
    except InputError:
        return False
    _set(model, flag, before)
    return True


def _is_head(site: str) -> bool:
    return site.startswith("L") and "." not in site
