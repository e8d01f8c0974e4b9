"""The definition: patches as TransformerLens hooks, one forward per variant.

It runs any HookedTransformer, and a TransformerBridge by the names that both share. `patch_hooks.py` makes the hooks.
The user's hooks run first, and patches act on what they return. TransformerLens computes the output and the inputs of a
single head only if flags ask for it. The flags are set for the run and then put back. A user's hook at a point that
only these flags activate does not run.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.runner.attention import take
from induction_memory.runner.components import ARROW, Graph
from induction_memory.runner.hook_points import asleep, keep
from induction_memory.runner.parameters import parameters
from induction_memory.runner.patch_hooks import Hook, patch_hooks
from induction_memory.runner.projections import Projection, projections
from induction_memory.runner.readable import unreadable
from induction_memory.runner.recording import Recording, Via, require_length
from induction_memory.runner.swapped_weights import replaced
from induction_memory.runner.variants import Variant

SPLIT = "use_split_qkv_input"
POINTS = {
    "use_attn_result": ("attn.hook_result",),
    SPLIT: ("hook_q_input", "hook_k_input", "hook_v_input"),
    "use_hook_mlp_in": ("hook_mlp_in",),
    "ungroup_grouped_query_attention": (),
}
"""TransformerLens's flag -> the hook points of a block that it activates."""


class HookedRunner:
    """Runs a TransformerLens model with the hooks that it has."""

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

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> Recording:
        """One forward with hooks. `patterns` has no effect: the first request for attention runs another forward."""
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
    ) -> Iterator[tuple[list[int], Float[Tensor, "variant batch m vocab"]]]:
        flags = self._flags([patch.site for variant in variants for patch in variant])
        projected = self._projections if SPLIT in flags and not self._splits else ()
        flags = [flag for flag in flags if not (projected and flag == SPLIT)]
        for index, variant in enumerate(variants):
            hooks = patch_hooks(self.graph, variant, self._W_O, projected)
            logits = self._forward(recording.tokens, hooks, flags)
            yield [index], (logits if queries is None else take(logits, queries)).unsqueeze(0)

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
        """The flags that patches at these sites need; without sites, those that a recording needs."""
        return [flag for flag in _flags(self.model, sites) if not (self._W_O and flag == "use_attn_result")]


def head_projections(model: nn.Module) -> tuple[Projection, ...]:
    """A replacement for the heads' own inputs, for models without them; empty for models that have them."""
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
    """The flags that patches at these sites need, or a recording."""
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
    """Give every head keys and values of its own, where several share them."""
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
    """Whether a model knows a flag: some bridges do not."""
    before = bool(getattr(model.cfg, flag, False))
    try:
        _set(model, flag, True)
    except InputError:
        return False
    _set(model, flag, before)
    return True


def _is_head(site: str) -> bool:
    return site.startswith("L") and "." not in site
