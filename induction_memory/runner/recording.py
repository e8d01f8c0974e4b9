"""One intact run of a model, kept whole: what every component read and wrote.

    x_1 = w_E(z_t) + p_t,    x'_l = x_l + sum over heads of z W_O + b_O,    x_{l+1} = x'_l + FF_l(x'_l or x_l)

Activations go by the names of TransformerLens's hooks. The patched variants of the run come from the runner that
recorded it.

A patch: a value put at a site of a run (the sites' names are in components.py).

With `amount` a and the run's own activation y,  y <- y + a (value - y)  at the positions `where`. A *variant* of a run
is a set of patches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.runner.components import Graph, head_of
from induction_memory.runner.network import Network
from induction_memory.terminal import track


@field_docs
@dataclass(frozen=True)
class Patch:
    """Put `value` at `site`.

    >>> import torch
    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> intact = im.runner.record(run.model(step=600), run.task.sample(2, im.step_rng(0, 0)).tokens)
    >>> nothing = im.runner.Patch("L1H1", torch.zeros(1, 1, 128))
    >>> intact.patched_logits([[nothing]]).shape
    torch.Size([1, 2, 256, 65])
    """

    site: str
    """`L1H1`, `L2H1.k`, `L1H1->L2H1.k` ..."""
    value: Float[Tensor, "#batch #pos d"]
    """What to put there; for an edge, the replacement for its source's output."""
    where: Bool[Tensor, "batch pos"] | None = None
    """The positions to replace; all when not given."""
    amount: float | Float[Tensor, ""] = 1.0
    """How far to go from the run's own activation (0) to the value (1)."""

    @property
    def is_constant(self) -> bool:
        """Whether it puts the same vector at every position of a sequence."""
        return self.is_everywhere and self.value.shape[1] == 1

    @property
    def is_everywhere(self) -> bool:
        """Whether it replaces the run's own activation completely, at every position."""
        return self._is_whole and self.where is None

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.amount, float) and self.amount == 1.0

    def of(self, sequences: slice) -> "Patch":
        """The patch restricted to some of the sequences."""
        value = self.value if len(self.value) == 1 else self.value[sequences]
        return replace(self, value=value, where=None if self.where is None else self.where[sequences])

    def blend(
        self,
        own: Float[Tensor, "batch m d"],
        value: Float[Tensor, "batch m d"],
        where: Bool[Tensor, "batch m 1"] | None,
    ) -> Float[Tensor, "batch m d"]:
        """own + amount (value - own); `value` and `where` at the positions that `own` has."""
        new = value if self._is_whole else own + self.amount * (value - own)
        return new if where is None else torch.where(where, new, own)


Variant = Sequence[Patch]


Via = Literal["hooks", "fast"]


@runtime_checkable
class Runner(Protocol):
    """Runs one model, intact or patched. There are two, `hooked` and `fast`; a test holds them equal."""

    via: Via

    @property
    def graph(self) -> Graph:
        """What the model is made of."""
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
        """Why memories cannot be read from the weights; None where they can."""
        ...

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> "Recording":
        """One intact run without gradients. In this run only, `weights` replace the parameters of the same names.

        `patterns` announces that the attention of every layer will be needed.
        """
        ...

    def run(
        self, recording: "Recording", variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> Iterator[tuple[list[int], Float[Tensor, "variant batch m vocab"]]]:
        """Logits of every variant, in groups: (which variants, their logits). At all positions, or at `queries`."""
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
    >>> intact = im.runner.record(run.model(step=600), run.task.sample(2, im.step_rng(0, 0)).tokens)
    >>> intact.at("L1H1").shape, intact.pattern(2).shape
    (torch.Size([2, 256, 128]), torch.Size([2, 1, 256, 256]))
    """

    runner: Runner
    tokens: Int[Tensor, "batch pos"]
    activations: Mapping[str, Tensor]
    """By TransformerLens's hook names."""
    logits: Float[Tensor, "batch pos vocab"]
    W_O: Sequence[Float[Tensor, "head d_head d_model"]] = ()
    """Output matrices of each layer, if the heads' outputs are computed only on request."""
    network: Network | None = field(default=None, repr=False)
    """The network of the shortcut."""
    _kept: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def graph(self) -> Graph:
        return self.runner.graph

    def layer(self, layer: int, hook: str) -> Tensor:
        """An activation of a layer counted from 1: `recording.layer(1, "attn.hook_z")`."""
        return self.activations[f"blocks.{layer - 1}.{hook}"]

    def at(self, site: str) -> Float[Tensor, "batch pos d"]:
        """What a writer wrote (`L1H1`, `FF2`, `embed`, `pos`), or a head's queries, keys or values (`L2H1.k`)."""
        if site in ("embed", "pos"):
            return self.activations["hook_embed" if site == "embed" else "hook_pos_embed"]
        if site.startswith("FF"):
            return self.layer(int(site[2:]), "hook_mlp_out")
        layer, head = head_of(site)
        if "." in site:
            return self.layer(layer, f"attn.hook_{site[-1]}")[..., head - 1, :]
        if not self.W_O:
            return self.layer(layer, "attn.hook_result")[..., head - 1, :]
        z = self.layer(layer, "attn.hook_z")[..., head - 1, :]
        return self.once(site, lambda: z @ self.W_O[layer - 1][head - 1])

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """A value derived from the activations, computed at the first request and kept."""
        if name not in self._kept:
            self._kept[name] = compute()
        return self._kept[name]

    def of(self, sequences: slice) -> "Recording":
        """The run of some of the sequences, with the values already computed for them."""
        return replace(
            self,
            tokens=self.tokens[sequences],
            activations={name: value[sequences] for name, value in self.activations.items()},
            logits=self.logits[sequences],
            _kept={name: value[sequences] for name, value in self._kept.items()},
        )

    def after_heads(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """The stream with what a layer's heads wrote, without its feed-forward."""
        before, written = (self.layer(layer, f"hook_{name}") for name in ("resid_pre", "attn_out"))
        return self.once(f"after heads {layer}", lambda: before + written)

    def knows_pattern(self, layer: int) -> bool:
        """Whether the attention of a layer has been computed."""
        return f"pattern {layer}" in self._kept

    def pattern(self, layer: int) -> Float[Tensor, "batch head query key"]:
        """The attention of a layer, counted from 1."""
        return self.once(f"pattern {layer}", lambda: self.runner.pattern(self, layer))

    def run(
        self, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
    ) -> Iterator[tuple[list[int], Float[Tensor, "variant batch m vocab"]]]:
        """Logits of every variant, in groups: (which variants, their logits). At all positions, or at `queries`."""
        known = {*self.graph.writers, *self.graph.inputs[:-1], *self.graph.edges}
        for variant in variants:
            for patch in variant:
                assert patch.site in known, f"no site {patch.site}"
        groups = self.runner.run(self, variants, queries)
        return track(groups, "patched runs", len(variants), size=lambda group: len(group[0]))

    def patched_logits(
        self, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
    ) -> Float[Tensor, "variant batch m vocab"]:
        """The logits of every variant in the order given, all in memory."""
        require(len(variants) > 0, "variants", "at least one", 0)
        parts: dict[int, Tensor] = {}
        for indices, group in self.run(variants, queries=queries):
            parts |= dict(zip(indices, group, strict=True))
        return torch.stack([parts[i] for i in range(len(variants))])


def require_length(tokens: Int[Tensor, "batch pos"], n_ctx: int, field: str = "tokens") -> None:
    """Refuse sequences that a model cannot read."""
    length = tokens.shape[1]
    require(1 <= length <= n_ctx, field, f"1 to {n_ctx} tokens (the model's n_ctx)", length)
