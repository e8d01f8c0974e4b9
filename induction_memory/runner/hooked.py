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

which is added at `hook_q`, `hook_k` or `hook_v`. What a model does not allow is found by a check of its own
activations (`checked.py`), and refused.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from induction_memory.errors import UnsupportedError
from induction_memory.runner.checked import (
    RESULT,
    SPLIT,
    UNGROUPED,
    Check,
    Hook,
    Projection,
    checked,
    projection,
    separated,
)
from induction_memory.runner.components import ARROW, Graph, head_of, shares_keys
from induction_memory.runner.recording import Patches, Recording, Variant, Via, pattern_name, require_tokens, take
from induction_memory.runner.support import keep
from induction_memory.runner.weights import parameters, replaced

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
        changed, before = (projection(letter, head_of(name)[1] - 1, x) for x in (read(name, noted[0]), noted[0]))
        return own + (changed - before)

    return [(f"{block}.hook_resid_pre", note), (f"{block}.attn.hook_{letter}", _by_head(change, inputs))]


class HookedRunner:
    """Runs a TransformerLens model with the user's hooks on it."""

    via: Via = "hooks"

    def __init__(self, model: nn.Module, swapped: Mapping[str, Tensor] | None = None) -> None:
        self.model: Any = model
        self._plain = Graph.of(model)
        self._swapped = swapped or {}
        self._check: Check | None = None
        """The check of the last recording, with the user's hooks; None before the first."""

    @property
    def check(self) -> Check:
        return self._check or checked(self.model)

    @property
    def graph(self) -> Graph:
        return replace(self._plain, refused=self.check.refused)

    @property
    def n_ctx(self) -> int:
        return self.model.cfg.n_ctx

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return parameters(self.model) | dict(self._swapped)

    @property
    def refusal(self) -> str | None:
        return checked(self.model).memories

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> Recording:
        """One forward with hooks; without `patterns`, attention is recorded by another forward on first use."""
        runner = HookedRunner(self.model, {**self._swapped, **weights}) if weights else self
        require_tokens(tokens, self.n_ctx, self.model.cfg.d_vocab)
        tokens, flags = tokens.to(next(self.model.parameters()).device), _flags(self.model)
        runner._check = check = checked(self.model, tokens)
        if patterns:
            _require_maps(check)
        graph, flags, W_O = self._plain, [flag for flag in flags if flag != RESULT or not check.summed], ()
        kept: dict[str, Tensor] = {}
        names = ["hook_embed", "hook_pos_embed"] if graph.positions else ["hook_embed"]
        for layer in range(1, graph.n_layers + 1):
            block = f"blocks.{layer - 1}."
            parts = ["hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_z"]
            parts += ["attn.hook_result"] * (RESULT in flags)
            parts += ["hook_attn_out", *["hook_mlp_out"] * (layer in graph.feed_forwards), "hook_resid_post"]
            names += [block + part for part in parts] + [pattern_name(layer)] * patterns
        with torch.no_grad(), replaced(self.model, runner._swapped):
            if check.summed:
                W_O = tuple(block.attn.W_O.detach() for block in self.model.blocks)
            logits = runner._forward(tokens, [(name, keep(kept, name)) for name in names], flags)
        kept = {name: value.expand(len(tokens), *value.shape[1:]) for name, value in kept.items()}
        return Recording(runner, tokens, kept, logits, W_O)

    def run(
        self, recording: Recording, variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> Iterator[Float[Tensor, "batch m vocab"]]:
        flags = _flags(self.model, [patch.site for variant in variants for patch in variant])
        absent = {RESULT} if recording.W_O else set()
        absent |= set() if self.check.split else {SPLIT}
        flags = [flag for flag in flags if flag not in absent]
        projected = () if self.check.split else tuple(map(projection, self.model.blocks))
        for variant in variants:
            hooks = patch_hooks(self.graph, variant, recording.W_O, projected)
            logits = self._forward(recording.tokens, hooks, flags)
            yield logits if queries is None else take(logits, queries)

    def pattern(self, recording: Recording, layer: int) -> Float[Tensor, "batch head query key"]:
        return self._patterns(recording.tokens, [layer])[0]

    def patterns(self, tokens: Int[Tensor, "batch pos"]) -> list[Float[Tensor, "batch head query key"]]:
        require_tokens(tokens, self.n_ctx, self.model.cfg.d_vocab)
        tokens = tokens.to(next(self.model.parameters()).device)
        return self._patterns(tokens, range(1, self.graph.n_layers + 1))

    def _patterns(
        self, tokens: Int[Tensor, "batch pos"], layers: Sequence[int]
    ) -> list[Float[Tensor, "batch head query key"]]:
        """The attention of some layers, by one forward."""
        _require_maps(checked(self.model, tokens))
        kept, names = dict[str, Tensor](), [pattern_name(layer) for layer in layers]
        with torch.no_grad():
            self._forward(tokens, [(name, keep(kept, name)) for name in names], [])
        return [kept[name] for name in names]

    def _forward(self, tokens: Tensor, hooks: Sequence[Hook], flags: Sequence[str]) -> Tensor:
        with replaced(self.model, self._swapped), separated(self.model, flags) as first:
            return self.model.run_with_hooks(tokens, fwd_hooks=[*first, *hooks])


def _require_maps(check: Check) -> None:
    if check.maps is not None:
        raise UnsupportedError(f"needs attention maps that say what the heads read, here {check.maps}")


def _flags(model: Any, sites: Sequence[str] | None = None) -> list[str]:
    """The flags for patches at these sites, or for a recording."""
    targets = [site.split(ARROW)[1] for site in sites or () if ARROW in site]
    heads = sites is None or any(_is_head(site.split(ARROW)[0]) for site in sites)
    reads = sites is None or any("." in site for site in sites)
    flags = [RESULT] if heads else []
    flags += [SPLIT] if any("." in target for target in targets) else []
    flags += ["use_hook_mlp_in"] if any(target.startswith("FF") for target in targets) else []
    return [*flags, UNGROUPED] if reads and shares_keys(model) else flags


def _is_head(site: str) -> bool:
    return site.startswith("L") and "." not in site
