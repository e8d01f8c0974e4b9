"""A recording: every input and output of the components in one intact run of a model.

    x_1 = w_E(z_t) + p_t,    x'_l = x_l + sum over heads of z W_O + b_O,    x_{l+1} = x'_l + FF_l(x'_l or x_l)

Activations have the names of TransformerLens's hooks. A patch puts a value at a site of a run (components.py names the
sites): with `amount` a and the unpatched activation y,

    y  <-  y + a (value - y)    at the positions `where`

A *variant* is a list of patches. Its run comes from the runner that made the recording.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.runner.components import ARROW, Graph, head_of
from induction_memory.runner.maps import Maps
from induction_memory.terminal import track


@field_docs
@dataclass(frozen=True)
class Patch:
    """Put `value` at `site`.

    >>> import torch
    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> intact = im.runner.record(run.model(step=600), run.task.sample(2, im.task.step_rng(0, 0)).tokens)
    >>> nothing = im.runner.Patch("L1H1", torch.zeros(1, 1, 128))
    >>> intact.patched_logits([[nothing]]).shape
    torch.Size([1, 2, 256, 65])
    """

    site: str
    """`L1H1`, `L2H1.k`, `L1H1->L2H1.k` ..."""
    value: Float[Tensor, "#batch #pos d"]
    """The new activation; for an edge, of its source."""
    where: Bool[Tensor, "batch pos"] | None = None
    """The positions to replace; None for all."""
    amount: float | Float[Tensor, ""] = 1.0
    """Interpolates from the unpatched activation (0) to the value (1)."""

    @property
    def replacement(self) -> tuple[int, int, int]:
        """A key that is equal for patches with the same replacement at the same site."""
        return id(self.value), id(self.where), id(self.amount)

    def applied(self, own: Tensor, rows: Int[Tensor, "batch m"] | None = None) -> Tensor:
        """An activation [batch, pos, d] with the patch; `rows` are its positions if it does not have all."""
        value, where = self.value, None if self.where is None else self.where.unsqueeze(-1)
        if rows is not None:
            value = value if value.shape[1] == 1 else take(value.expand(len(rows), -1, -1), rows)
            where = where if where is None else take(where, rows)
        own, value = torch.broadcast_tensors(own, value)
        whole = isinstance(self.amount, float) and self.amount == 1.0
        new = value if whole else own + self.amount * (value - own)
        return new if where is None else torch.where(where, new, own)


Variant = Sequence[Patch]


def patches_of(variants: Sequence[Variant], sequences: slice) -> list[list[Patch]]:
    """The patches of variants for some sequences. Patches with the same replacement still share it."""
    found, cut = list[list[Patch]](), dict[int, Any]()
    for variant in variants:
        found.append([])
        for patch in variant:
            for x in (patch.value, patch.where):
                if id(x) not in cut:
                    cut[id(x)] = x if x is None or len(x) == 1 else x[sequences]
            found[-1].append(replace(patch, value=cut[id(patch.value)], where=cut[id(patch.where)]))
    return found


class Patches:
    """The patches of a variant by site, applied during a run in the order of the computation."""

    def __init__(self, variant: Variant, recorded: Callable[[str], Tensor] | None = None) -> None:
        self.nodes: dict[str, list[Patch]] = {}
        self.edges: dict[str, list[tuple[str, Patch]]] = {}
        self.sources = set[str]()
        for patch in variant:
            source, arrow, target = patch.site.partition(ARROW)
            if arrow:
                self.edges.setdefault(target, []).append((source, patch))
                self.sources.add(source)
            else:
                self.nodes.setdefault(source, []).append(patch)
        self.rows: Tensor | None = None
        """The positions of each sequence that the run still computes; None for all."""
        self._recorded, self._written = recorded, dict[str, Tensor]()
        self._changes: dict[str, dict[tuple, Tensor]] = {}
        """Source -> patch of its edges -> the change of every stream that reads the source through a patched edge."""

    def write(self, name: str, own: Tensor) -> Tensor:
        """A writer's output, or a head's queries, keys or values, with the patches there."""
        for patch in self.nodes.get(name, ()):
            own = patch.applied(own, self.rows)
        if name in self.sources:
            self._written[name], self._changes[name] = own, {}
        return own

    def read(self, name: str, stream: Tensor) -> Tensor:
        """The stream as an input sees it, with the edges into it patched."""
        for source, patch in self.edges.get(name, ()):
            changes = self._changes.setdefault(source, {})
            if patch.replacement not in changes:
                own = self._written[source] if source in self._written else self.recorded(source)
                changes[patch.replacement] = patch.applied(own, self.rows) - own
            stream = stream + changes[patch.replacement]
        return stream

    def recorded(self, name: str) -> Tensor:
        """A writer's output in the recorded run, at the positions that this run still computes."""
        assert self._recorded is not None
        value = self._recorded(name)
        return value if self.rows is None else take(value, self.rows)

    def narrow(self, rows: Int[Tensor, "batch m"]) -> None:
        """Compute only these positions from here on."""
        self.rows = rows
        self._written, self._changes = {name: take(value, rows) for name, value in self._written.items()}, {}

    def followed_by(self, variant: Variant) -> "Patches":
        """The patches of a variant from this point of the run on, with the outputs computed so far."""
        after = Patches(variant, self._recorded)
        after.rows, after._written = self.rows, dict(self._written)
        return after


def take(x: Tensor, rows: Int[Tensor, "batch m"]) -> Tensor:
    """x[batch, pos, d] at some positions of each sequence."""
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


Via = Literal["hooks", "fast"]


@runtime_checkable
class Runner(Protocol):
    """Runs one model, intact or patched. The two runners, `hooked` and `fast`, are held equal by tests."""

    via: Via

    @property
    def graph(self) -> Graph:
        """The structure of the model."""
        ...

    @property
    def n_ctx(self) -> int:
        """The longest sequence."""
        ...

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The model's parameters by HookedTransformer's names."""
        ...

    @property
    def refusal(self) -> str | None:
        """Why memories cannot be read from the weights; None if they can."""
        ...

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> "Recording":
        """One intact run without gradients. `weights` replace the parameters of the same names during this run.

        With `patterns`, attention is recorded too; otherwise it is computed on first use.
        """
        ...

    def run(
        self, recording: "Recording", variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> Iterator[Float[Tensor, "batch m vocab"]]:
        """The logits of each variant, in the order given: at all positions, or at `queries`."""
        ...

    def patterns(self, tokens: Int[Tensor, "batch pos"]) -> list[Float[Tensor, "batch head query key"]]:
        """The attention of every layer, without a recording."""
        ...

    def pattern(self, recording: "Recording", layer: int) -> Float[Tensor, "batch head query key"]:
        """The attention of a layer, counted from 1."""
        ...


@field_docs
@dataclass(frozen=True, eq=False)
class Recording:
    """The tokens of a run, and every activation that a patch may need.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> intact = im.runner.record(run.model(step=600), run.task.sample(2, im.task.step_rng(0, 0)).tokens)
    >>> intact.at("L1H1").shape, intact.pattern(2).shape
    (torch.Size([2, 256, 128]), torch.Size([2, 1, 256, 256]))
    """

    runner: Runner
    tokens: Int[Tensor, "batch pos"]
    activations: Mapping[str, Tensor]
    """By TransformerLens's hook names."""
    logits: Float[Tensor, "batch pos vocab"]
    W_O: Sequence[Float[Tensor, "head d_head d_model"]] = ()
    """W_O of each layer, to compute the outputs of heads on request; empty if they are recorded."""
    maps: Maps | None = field(default=None, repr=False)
    """The maps of the fast path that computed it."""
    _kept: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def graph(self) -> Graph:
        return self.runner.graph

    def layer(self, layer: int, hook: str) -> Tensor:
        """An activation of a layer counted from 1: `recording.layer(1, "attn.hook_z")`."""
        return self.activations[f"blocks.{layer - 1}.{hook}"]

    def at(self, site: str) -> Float[Tensor, "batch pos d"]:
        """A writer's output (`L1H1`, `FF2`, `embed`, `pos`), or a head's queries, keys or values (`L2H1.k`)."""
        if site in ("embed", "pos"):
            return self.activations["hook_embed" if site == "embed" else "hook_pos_embed"]
        if site.startswith("FF"):
            return self.layer(int(site[2:]), "hook_mlp_out")
        layer, head = head_of(site)
        if "." in site:
            return self.layer(layer, f"attn.hook_{site[-1]}")[..., head - 1, :]
        if not self.W_O:
            return self.layer(layer, "attn.hook_result")[..., head - 1, :]
        if site not in self._kept:
            self._kept[site] = self.layer(layer, "attn.hook_z")[..., head - 1, :] @ self.W_O[layer - 1][head - 1]
        return self._kept[site]

    def pattern(self, layer: int) -> Float[Tensor, "batch head query key"]:
        """The attention of a layer, counted from 1."""
        name = pattern_name(layer)
        if name in self.activations:
            return self.activations[name]
        if name not in self._kept:
            self._kept[name] = self.runner.pattern(self, layer)
        return self._kept[name]

    def of_sequences(self, sequences: slice) -> "Recording":
        """The recording of some sequences."""
        activations = dict(self.activations)
        for name, value in activations.items():
            activations[name] = value[sequences]
        tokens, logits = self.tokens[sequences], self.logits[sequences]
        return replace(self, tokens=tokens, activations=activations, logits=logits, _kept={})

    def run(
        self, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
    ) -> Iterator[Float[Tensor, "batch m vocab"]]:
        """The logits of each variant, in the order given: at all positions, or at `queries`."""
        for site in {patch.site for variant in variants for patch in variant}:
            assert self.graph.resolve(site) == (site,), f"{site} is not one site"
        return track(self.runner.run(self, variants, queries), "patched runs", len(variants))

    def patched_logits(
        self, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
    ) -> Float[Tensor, "variant batch m vocab"]:
        """The logits of all variants, all in memory."""
        require(len(variants) > 0, "variants", "at least one", 0)
        return torch.stack(list(self.run(variants, queries=queries)))


def pattern_name(layer: int) -> str:
    """The hook of a layer's attention pattern, layers counted from 1."""
    return f"blocks.{layer - 1}.attn.hook_pattern"


def require_tokens(tokens: Int[Tensor, "batch pos"], n_ctx: int, vocabulary: int) -> None:
    """Refuse sequences that are too long, or have tokens that the model does not know."""
    whole = isinstance(tokens, Tensor) and tokens.dim() == 2 and not tokens.is_floating_point() and len(tokens) > 0
    require(whole, "tokens", "whole numbers of shape [batch, pos]", getattr(tokens, "shape", type(tokens).__name__))
    require(1 <= tokens.shape[1] <= n_ctx, "tokens", f"1 to {n_ctx} tokens (the model's n_ctx)", tokens.shape[1])
    low, high = int(tokens.min()), int(tokens.max())
    require(low >= 0 and high < vocabulary, "tokens", f"tokens from 0 to {vocabulary - 1}", f"{low} to {high}")


def require_length(tokens: Int[Tensor, "batch pos"], n_ctx: int, field: str = "tokens") -> None:
    """Refuse sequences that a model cannot read."""
    length = tokens.shape[1]
    require(1 <= length <= n_ctx, field, f"1 to {n_ctx} tokens (the model's n_ctx)", length)
