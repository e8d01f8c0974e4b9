"""Why a model predicts what it predicts: logits and attention scores as exact sums over embeddings.

Every residual stream is a sum of what its writers added, and what a head added is a sum again, over what it read:

    x_t  =  w_E(z_t) + p_t + sum over heads of sum_s A[t, s] Phi x_s + sum over feed-forwards of W_F x_t + biases

so for any vector f, f^T x_t is a sum over paths from an embedding to the place where f reads. The term of
a path is

    weight * f'^T e,    weight = product of the attentions on the way,    f' = ... Phi^T W_F^T f,    e = w_E(z_s) or p_s

and `expand` goes backwards from f. Two choices of f give the two questions:

    logit       f = w_U(y)                           y's logit at t; w_U(y) - w_U(y') for the difference to another
    score       f = W_K q_i / sqrt(d_head)           q_i a part of the query, read at a key: the score sums over i

A term of a pair that the ideal memory stores is signal, every other term is interference. The stored pairs are
w_E(k) with Phi_1 w_E(k) in W_K2, p_t with p_{t-1} in W_K1, the value w_E(k) with its output w_U(k) in W_O2, and the
bigrams in W_F.

The sum is exact for one input, with three things fixed: attention, the scale of each LayerNorm, and the mask of each
ReLU. Other nonlinear components (a GELU) stay one part. Paths go through at most two heads in small models and one in
others; then the output of earlier heads is one part. A check ensures that the remainder, model minus sum, is only
rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.field_docs import field_docs
from induction_memory.probes.activations import Activations
from induction_memory.runner.components import Graph, head_of, layer_of
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Sequences, select
from induction_memory.source.text import words_of_outputs
from induction_memory.task.protocol import Ideal, Task, offered
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

SMALL = 16
"""In models with at most this many heads, paths go through two heads, otherwise through one."""
FEW = 0.1
"""Heads whose effect is below this share of the largest one are not followed."""
ROUNDING = 1e-3
"""The largest remainder that counts as rounding, as a share of the sum of the terms' sizes."""
WHOLE = "a model whose weights say all that it computes"


@field_docs
@dataclass(frozen=True, eq=False)
class Leaf:
    """The end of a path: one part of the stream, read at each position."""

    path: tuple[str, ...]
    """The components on the path, from the reader backwards: `L2H1`, `L1H1`."""
    part: str
    """`embed`, `pos`, `bias`, or a component that is not split."""
    weight: Float[Tensor, "n #pos"]
    """The product of attentions on the path, divided by the scales of the LayerNorms."""
    value: Float[Tensor, "n #pos"]
    """Weight times the product of f and the part."""


class Streams:
    """One sequence of a batch: all parts of its streams, and their sums."""

    def __init__(self, activations: Activations, row: int = 0, *, deep: bool = True) -> None:
        self.a, self.row = activations, row
        self.model: Any = activations.model if activations.runner is None else None
        self.graph = Graph.of(self.model) if activations.runner is None else activations.runner.graph
        self.deep = deep and len(self.graph.heads) <= SMALL
        """Whether paths go through two heads, and through feed-forwards before the last of them."""
        self._kept: dict[Any, Any] = {}

    def weight(self, name: str) -> Tensor:
        """A parameter of the model by TransformerLens's name."""
        return self.a.once(name, lambda: self.a.stack.parameter(name)[0])

    def bias(self, name: str) -> Tensor:
        """A bias, zeros if the model has none. A bridge has biases as attributes, not among its weights."""
        if name in self.a.stack.weights:
            return self.weight(name)
        (place, _, kind), W = name.rpartition("."), self.weight(name.replace(".b_", ".W_"))
        found = None if self.model is None else getattr(self.model.get_submodule(place), kind, None)
        if not isinstance(found, Tensor):
            return W.new_zeros(W.shape[-1] if kind == "b_O" else (*W.shape[:-2], W.shape[-1]))
        return found.detach().repeat_interleave(self.graph.n_heads // len(found) if kind in ("b_K", "b_V") else 1, 0)

    def of_head(self, head: str, letter: str) -> tuple[Float[Tensor, "d d_head"], Float[Tensor, " d_head"]]:
        """The matrix and bias with which a head makes its queries, keys or values."""
        block, number = f"blocks.{layer_of(head) - 1}.attn", head_of(head)[1] - 1
        return self.weight(f"{block}.W_{letter}")[number], self.bias(f"{block}.b_{letter}")[number]

    def cached(self, hook: str) -> Tensor:
        found = self.a.cache[hook]
        return found[self.row if len(found) > 1 else 0]

    def pattern(self, head: str) -> Float[Tensor, "query key"]:
        layer, number = head_of(head)
        return self.a.pattern(layer)[self.row, number - 1]

    def part(self, writer: str) -> Float[Tensor, "pos d"]:
        """The output of a writer at each position."""
        if writer in ("embed", "pos"):
            return self.cached("hook_embed" if writer == "embed" else "hook_pos_embed")
        if writer.startswith("FF"):
            return self.cached(f"blocks.{int(writer[2:]) - 1}.hook_mlp_out")
        if writer not in self._kept:
            block, number = f"blocks.{layer_of(writer) - 1}.attn", head_of(writer)[1] - 1
            self._kept[writer] = self.cached(f"{block}.hook_z")[:, number] @ self.weight(f"{block}.W_O")[number]
        return self._kept[writer]

    def output_bias(self, reader: str) -> Float[Tensor, " d"]:
        """The sum of the b_O of the layers before a reader."""
        layers = {layer_of(w) for w in self.graph.writers_before(reader) if w[0] == "L"}
        found = [self.bias(f"blocks.{layer - 1}.attn.b_O") for layer in sorted(layers)]
        return sum(found, torch.zeros_like(self.part("embed")[0]))

    def stream(self, reader: str) -> Float[Tensor, "pos d"]:
        """The input of a reader before its norm: the sum of all parts."""
        if reader not in self._kept:
            parts = [self.part(writer) for writer in self.graph.writers_before(reader)]
            self._kept[reader] = sum(parts, self.output_bias(reader))
        return self._kept[reader]

    def linear(self, norm: str, x: Tensor, *, functional: bool = False) -> Tensor:
        """Centring and gain of a norm, applied to vectors; for functionals in the reverse order."""
        if f"{norm}.hook_scale" not in self.a.cache:
            return x
        gain = self.weight(f"{norm}.w") if f"{norm}.w" in self.a.stack.weights else 1.0
        x = x * gain if functional else x
        x = x - x.mean(-1, keepdim=True) if f"{norm}.b" in self.a.stack.weights else x
        return x if functional else x * gain

    def scale(self, norm: str) -> Float[Tensor, "pos one"]:
        if f"{norm}.hook_scale" in self.a.cache:
            return self.cached(f"{norm}.hook_scale").flatten(1)[:, :1]
        return torch.ones_like(self.part("embed")[:, :1])

    def shift(self, norm: str) -> Tensor | float:
        """The bias of a norm."""
        return self.weight(f"{norm}.b") if f"{norm}.b" in self.a.stack.weights else 0.0

    def normed(self, norm: str, x: Float[Tensor, "pos d"]) -> Float[Tensor, "pos d"]:
        return self.linear(norm, x) / self.scale(norm) + self.shift(norm)

    def split(self, writer: str) -> bool:
        """Whether a feed-forward can be split (linear or ReLU); any other stays one part."""
        block = f"blocks.{int(writer[2:]) - 1}.mlp"
        return f"{block}.W_F" in self.a.stack.weights or f"{block}.W_in" in self.a.stack.weights

    def mask(self, writer: str) -> Float[Tensor, "pos d_mlp"]:
        """Which hidden units of a ReLU feed-forward are on."""
        if ("mask", writer) not in self._kept:
            block = f"blocks.{int(writer[2:]) - 1}"
            x = self.normed(f"{block}.ln2", self.stream(writer))
            hidden = x @ self.weight(f"{block}.mlp.W_in") + self.bias(f"{block}.mlp.b_in")
            self._kept["mask", writer] = (hidden > 0).to(x)
        return self._kept["mask", writer]

    def expand(
        self,
        reader: str,
        f: Float[Tensor, "n #pos d"],
        weight: Float[Tensor, "n #pos"],
        at: Int[Tensor, " n"] | None = None,
        *,
        depth: int | None = None,
        path: tuple[str, ...] = (),
    ) -> Iterator[Leaf]:
        """The leaves of sum_s weight_s f_s^T x_s, with x the normed input of `reader`; with `at`, only x at this
        position.

        The norm's own factors are already in f and weight (`behind`).
        """
        depth = (2 if self.deep else 1) if depth is None else depth
        for writer in self.graph.writers_before(reader):
            if writer.startswith("FF") and self.split(writer) and (self.deep or at is not None):
                yield from self._through_feed_forward(writer, f, weight, at, depth, path)
            elif writer[0] == "L" and depth:
                yield from self._through_head(writer, f, weight, at, depth, path)
            else:
                yield Leaf(path, writer, weight, weight * _dot(f, self.part(writer), at))
        yield Leaf(path, "bias", weight, weight * (f @ self.output_bias(reader)))

    def behind(
        self, norm: str, f: Tensor, weight: Tensor, at: Int[Tensor, " n"] | None
    ) -> tuple[Tensor, Float[Tensor, "n #pos"], Float[Tensor, "n #pos"]]:
        """Rewrite weight f^T N(x) as weight' f'^T x + constant, with N the norm; returns f', weight' and constant."""
        if f"{norm}.hook_scale" not in self.a.cache:
            return f, weight, torch.zeros_like(weight)
        constant = weight * (f * self.shift(norm)).sum(-1)
        scale = self.scale(norm)[:, 0]
        return self.linear(norm, f, functional=True), weight / (scale if at is None else scale[at][:, None]), constant

    def _through_head(
        self, head: str, f: Tensor, weight: Tensor, at: Tensor | None, depth: int, path: tuple[str, ...]
    ) -> Iterator[Leaf]:
        layer, number = head_of(head)
        block, A, path, (W_V, b_V) = f"blocks.{layer - 1}", self.pattern(head), (*path, head), self.of_head(head, "V")
        read = f @ self.weight(f"{block}.attn.W_O")[number - 1].T
        total = A.sum(-1)  # less than 1 if a sink takes the rest
        constant = weight * (read @ b_V) * (total if at is None else total[at][:, None])
        f = read @ W_V.T
        if at is not None:
            weight = weight * A[at]
        elif f.shape[1] == 1:
            weight = weight @ A
        else:  # f depends on the position that reads: attention mixes them
            f = torch.einsum("ns,nsd,sr->nrd", weight, f, A)
            weight = torch.ones_like(f[..., 0])
        f, weight, shifted = self.behind(f"{block}.ln1", f, weight, None)
        yield Leaf(path, "bias", weight, (constant.sum(-1) + shifted.sum(-1))[:, None])
        yield from self.expand(f"{head}.v", f, weight, depth=depth - 1, path=path)

    def _through_feed_forward(
        self, writer: str, f: Tensor, weight: Tensor, at: Tensor | None, depth: int, path: tuple[str, ...]
    ) -> Iterator[Leaf]:
        block, path = f"blocks.{int(writer[2:]) - 1}", (*path, writer)
        constant = torch.zeros_like(weight)
        if f"{block}.mlp.W_F" in self.a.stack.weights:
            f = f @ self.weight(f"{block}.mlp.W_F").T
        else:
            mask = self.mask(writer)
            hidden = f @ self.weight(f"{block}.mlp.W_out").T * (mask if at is None else mask[at][:, None])
            constant = weight * (f @ self.bias(f"{block}.mlp.b_out") + hidden @ self.bias(f"{block}.mlp.b_in"))
            f = hidden @ self.weight(f"{block}.mlp.W_in").T
        f, weight, shifted = self.behind(f"{block}.ln2", f, weight, at)
        yield Leaf(path, "bias", weight, constant + shifted)
        yield from self.expand(writer, f, weight, at, depth=depth, path=path)

    def logits(
        self, positions: Int[Tensor, " n"], targets: Int[Tensor, " n"], against: Int[Tensor, " n"] | None = None
    ) -> Iterator[Leaf]:
        """The leaves of the targets' logits at some positions, or of their differences to other logits."""
        w_U, b_U = self.weight("unembed.W_U").T, self.bias("unembed.b_U")
        f, constant = w_U[targets], b_U[targets][:, None]
        if against is not None:
            f, constant = f - w_U[against], constant - b_U[against][:, None]
        f, weight, shifted = self.behind("ln_final", f[:, None], torch.ones_like(constant), positions)
        yield Leaf((), "bias", weight, constant + shifted)
        yield from self.expand("out", f, weight, positions)

    def scores(
        self, head: str, queries: Int[Tensor, " n"], keys: Int[Tensor, " n"], only: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Leaf]]:
        """For each part of the query (or those in `only`), the leaves of its scores with the keys."""
        layer, turns = layer_of(head), self.turns(layer_of(head))
        norm, (W_Q, b_Q), (W_K, b_K) = f"blocks.{layer - 1}.ln1", self.of_head(head, "Q"), self.of_head(head, "K")
        parts = {w: self.part(w)[queries] for w in self.graph.writers_before(f"{head}.q")}
        parts["bias"] = self.output_bias(f"{head}.q").expand(len(queries), -1)
        for writer in parts if only is None else only:
            q = self.linear(norm, parts[writer]) / self.scale(norm)[queries] @ W_Q
            q = q + (self.shift(norm) * torch.ones_like(parts[writer]) @ W_Q + b_Q if writer == "bias" else 0)
            if turns is not None:  # R_s^T R_t q: its product with an unturned key at s is the score
                q = torch.einsum("nd,nde,nfe->nf", q, turns[queries], turns[keys])
            q = q / self.attention_scale(layer)
            f, weight, shifted = self.behind(norm, (q @ W_K.T)[:, None], torch.ones_like(q[:, :1]), keys)
            yield writer, Leaf((), "bias", weight, shifted + q @ b_K[:, None])
            for leaf in self.expand(f"{head}.k", f, weight, keys, depth=1 if len(self.graph.heads) <= SMALL else 0):
                yield writer, leaf

    def attention_scale(self, layer: int) -> float:
        """The divisor of scores."""
        if self.model is None:
            source: Any = self.a.at.chosen.source
            return source.model_config.head_dimension**0.5 if source.model_config.scale_scores else 1.0
        cfg = self.model.cfg
        own = getattr(self.model.get_submodule(f"blocks.{layer - 1}.attn"), "attn_scale", None)
        return float((cfg.attn_scale if cfg.attn_scale > 0 else cfg.d_head**0.5) if own is None else own)

    @property
    def scored(self) -> bool:
        """Whether attention scores can be split; if not, logits still can."""
        if self.model is None:
            return True
        kind, model = self.model.cfg.positional_embedding_type, self.model
        return kind == "standard" or (kind == "rotary" and hasattr(model.blocks[0].attn, "apply_rotary"))

    def turns(self, layer: int) -> Float[Tensor, "pos d_head d_head"] | None:
        """The rotations of queries and keys (rows) at each position; None without rotary positions."""
        if self.model is None or self.model.cfg.positional_embedding_type == "standard":
            return None
        if not self.scored:
            raise UnsupportedError("needs learned positions, or rotary ones of a HookedTransformer, to split scores")
        attn = self.model.blocks[layer - 1].attn
        if ("turns", layer) not in self._kept:
            width = self.weight(f"blocks.{layer - 1}.attn.W_Q").shape[-1]
            eye = torch.eye(width).to(self.part("embed"))[:, None, None]
            turned = attn.apply_rotary(eye.expand(-1, len(self.tokens), 1, -1))
            self._kept["turns", layer] = turned[:, :, 0].movedim(0, 1)  # row i at t is the turned e_i
        return self._kept["turns", layer]

    def all_scores(self, head: str, queries: Int[Tensor, " n"]) -> Float[Tensor, "n pos"]:
        """The scores of some queries with every key, -inf for later keys; their softmax is the attention."""
        layer, turns, sides = layer_of(head), self.turns(layer_of(head)), list[Tensor]()
        read = self.normed(f"blocks.{layer - 1}.ln1", self.stream(f"{head}.q"))
        for W, b in (self.of_head(head, "Q"), self.of_head(head, "K")):
            sides.append(read @ W + b if turns is None else torch.einsum("pd,pde->pe", read @ W + b, turns))
        found = sides[0][queries] @ sides[1].T / self.attention_scale(layer)
        later = torch.arange(len(self.tokens), device=queries.device) > queries[:, None]
        found = found.masked_fill(later, -torch.inf)
        missing = float((found.softmax(-1) - self.pattern(head)[queries]).abs().max())
        if missing > ROUNDING:
            raise UnsupportedError(f"needs {WHOLE}: the attention of {head} differs by {missing:.3g}")
        return found

    @property
    def tokens(self) -> Int[Tensor, " pos"]:
        return self.a.batch.tokens[self.row]

    def memory(self, component: str) -> str:
        """The memory that a component writes with; the component's name if no task names its memories."""
        if self.a.stack.task is None:
            return component
        if component[0] == "L":
            return f"W_O{layer_of(component)}"
        linear = f"blocks.{layer_of(component) - 1}.mlp.W_F" in self.a.stack.weights
        return ("W_F" if layer_of(component) == self.graph.n_layers else f"W_F{component[2:]}") if linear else component

    def ideal(self, name: str) -> Ideal | None:
        """The task's ideal memory of this name, if there is one."""
        task = self.a.stack.task
        return self.a.once("ideal", lambda: {} if task is None else offered(task, "associations") or {}).get(name)

    def output_signal(self, targets: Sequence[int], leaf: Leaf, at: Sequence[int]) -> Bool[np.ndarray, " m"]:
        """The positions at which a leaf of these outputs' logits belongs to an ideal pair, also through W_F."""
        *later, own = leaf.path or ("",)
        stored = self.ideal(self.memory(own)) if own and leaf.part == "embed" else None
        passed = own[:1] == "L" and all(one[0] == "F" for one in later)
        if stored is None or stored.inputs != "token" or not (passed or not later):
            return np.zeros(len(at), dtype=bool)
        return (stored.strength[np.ix_(targets, self.tokens[list(at)].tolist())] != 0).any(0)

    def score_signal(
        self, head: str, query_part: str, query: int, leaf: Leaf, at: Sequence[int]
    ) -> Bool[np.ndarray, " m"]:
        """The positions at which a leaf of a query's scores belongs to an ideal pair."""
        stored, parts = self.ideal(f"W_K{layer_of(head)}"), (query_part, leaf.part)
        sides = ("", "") if stored is None else (stored.inputs, stored.outputs)
        if stored is not None and sides == ("position", "position") and parts == ("pos", "pos") and not leaf.path:
            return stored.strength[query, list(at)] != 0
        carried = parts == ("embed", "embed") and len(leaf.path) == 1 and leaf.path[0][0] == "L"
        if stored is not None and sides == ("token", "token") and carried:
            return stored.strength[int(self.tokens[query]), self.tokens[list(at)].tolist()] != 0
        return np.zeros(len(at), dtype=bool)


def _dot(f: Float[Tensor, "n #pos d"], part: Float[Tensor, "pos d"], at: Int[Tensor, " n"] | None) -> Tensor:
    """f^T e for each position, or at the one position of each f."""
    if at is not None:
        return torch.linalg.vecdot(f, part[at][:, None])
    return f[:, 0] @ part.T if f.shape[1] == 1 else torch.einsum("nsd,sd->ns", f, part)


COLUMNS = ["of", "query", "key", "path", "part", "position", "input", "query_part", "output", "memory", "role", "value"]
"""Columns of the terms. Position 0 means a bias, or the sum of a path's terms that are too small to be listed."""


@field_docs
@dataclass(frozen=True, eq=False)
class Attended:
    """The key that one head attends to, and why not to another key. Positions count from 1."""

    head: str
    query: int
    key: int
    """The key with the most attention."""
    weight: float
    """The attention to this key and to the other keys with the same token."""
    rival: int
    """The key with the most attention among keys with other tokens; 0 if there is none."""
    odds: float
    """log A[query, key] - log A[query, rival]: the difference of the scores, or the score alone without a rival; nan
    for scores that cannot be split."""
    signal: float
    """The part of it from ideal pairs; everything else is interference."""
    effect: float
    """The head's contribution to the logit on all its paths; nan for a head that is listed because the previous one
    reads its output."""


@field_docs
@dataclass(frozen=True, eq=False)
class Reason:
    """One prediction of one model as a sum of terms. Positions count from 1."""

    step: int
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    """The tokens as numbers."""
    position: int
    predicted: str
    target: str
    """The output whose logit is explained, by default the predicted one."""
    against: str
    """The output whose logit is subtracted; empty for none."""
    probability: float
    """The model's probability of the target."""
    logit: float
    """The target's logit minus the logit of `against`."""
    remainder: float
    """Logit minus the sum of its terms."""
    held: tuple[str, ...]
    """The parts of this forward that were held fixed."""
    terms: pd.DataFrame
    """The rows of "logit" add up to the logit, the rows of a head to the log-odds of its attention."""
    heads: tuple[Attended, ...]
    """The heads with the largest effects, each followed by the head whose output it reads at its key."""


class _Terms:
    """The rows of a table of terms, and their sums."""

    def __init__(self, streams: Streams, words: Sequence[str], least: float) -> None:
        self.streams, self.words, self.least = streams, words, least
        self.rows: list[tuple] = []

    def add(
        self, of: str, query: int, at: int, leaf: Leaf, output: str, signal: Any, *, sign: int = 1, query_part: str = ""
    ) -> float:
        """Add a leaf, which reads at one position or at all of them. Returns what its ideal pairs contribute."""
        values = sign * leaf.value[0].double().cpu().numpy()
        at_all = len(values) > 1
        places = list(range(len(values))) if at_all else [at]
        roles: np.ndarray = signal(leaf, places)
        end, by = ("out", leaf.path[0] if leaf.path else "direct") if of == "logit" else (f"{of}.k", of)
        memory = f"W_K{layer_of(of)}" if of != "logit" and self.streams.a.stack.task is not None else by
        memory = self.streams.memory(by) if of == "logit" and leaf.path else memory
        path, key = ">".join((*reversed(leaf.path), end)), 0 if of == "logit" else at + 1
        small = np.abs(values) < self.least if leaf.part != "bias" else np.ones(len(values), dtype=bool)
        for i in np.flatnonzero(~small):
            s = places[i]
            name = {"embed": self.words[s], "pos": f"p({s + 1})"}.get(leaf.part, leaf.part)
            role = "signal" if roles[i] else "interference"
            row = of, query + 1, key, path, leaf.part, s + 1, name, query_part, output, memory, role, values[i]
            self.rows.append(row)
        for role, chosen in (("signal", roles), ("interference", ~roles)):
            if (rest := values[small & chosen]).any():
                name = leaf.part if leaf.part == "bias" else "smaller"
                row = of, query + 1, key, path, leaf.part, 0, name, query_part, output, memory, role, rest.sum()
                self.rows.append(row)
        return float(values[roles].sum())

    def close(self, of: str, query: int, own: float) -> float:
        """The model's number minus the sum of the terms; an error if it is more than rounding."""
        values = [row[-1] for row in self.rows if row[0] == of and row[1] == query + 1]
        missing = own - sum(values)
        if abs(missing) > ROUNDING * max(1.0, sum(map(abs, values))):
            raise UnsupportedError(f"needs {WHOLE}: of {of}, a sum over them misses {missing:.3g}")
        return missing


def explain(
    activations: Activations,
    words: tuple[Sequence[str], Sequence[str]],
    *,
    row: int = 0,
    position: int,
    target: int | None = None,
    against: int | None = None,
    least: float = 0.01,
    most_heads: int = 3,
) -> Reason:
    """The prediction at a position (from 1) of a sequence as a sum of terms.

    `words` are the names of the sequence's tokens and of the outputs. Terms below `least` are added up per path.
    """
    streams, t, a = Streams(activations, row), position - 1, activations
    logits = a.logits[row, t]
    best = int(logits.argmax())
    y = best if target is None else target
    targets = [y] if against is None else [y, against]
    named = [words[1][j] for j in (best, *targets)]
    table, effects = _Terms(streams, words[0], least), dict[str, float]()
    at, *j = (torch.tensor([i], device=logits.device) for i in (t, *targets))
    for leaf in streams.logits(at, *j):
        table.add("logit", t, t, leaf, "−".join(named[1:]), partial(streams.output_signal, targets))
        for head in [component for component in leaf.path if component[0] == "L"][:1]:
            effects[head] = effects.get(head, 0.0) + float(leaf.value.sum())
    logit = float(logits[y] - (0 if against is None else logits[against]))
    remainder = table.close("logit", t, logit)
    attended = list[Attended]()
    chosen = sorted(effects, key=lambda head: -abs(effects[head]))[:most_heads]
    for head in [head for head in chosen if abs(effects[head]) >= FEW * abs(effects[chosen[0]])]:
        attended += _followed(table, head, t, effects[head])
    feed = [w for w in streams.graph.writers if w.startswith("FF")]
    masked = [w for w in feed if streams.split(w) and f"blocks.{int(w[2:]) - 1}.mlp.W_in" in a.stack.weights]
    held = ["attention"] + ["LayerNorm scales"] * any(name.endswith("hook_scale") for name in a.cache)
    held += [] if streams.scored else ["scores (not split)"]
    held += ["ReLU masks"] * bool(masked) + [f"{w} (one part)" for w in feed if not streams.split(w)]
    terms, p = pd.DataFrame(table.rows, columns=COLUMNS), float(logits.double().softmax(-1)[y])
    ids, against_name = tuple(streams.tokens.tolist()), "" if against is None else named[2]
    said = named[0], named[1], against_name, p, logit, remainder
    return Reason(a.at.step, tuple(words[0]), ids, position, *said, tuple(held), terms, tuple(attended))


def _followed(table: _Terms, head: str, t: int, effect: float) -> Iterator[Attended]:
    """A head at a query, then the head that wrote most of what it reads at its key, and so on."""
    streams, done = table.streams, {(row[0], row[1]) for row in table.rows}
    if (head, t + 1) in done:
        return
    tokens, query = streams.tokens[: t + 1], torch.tensor([t], device=streams.tokens.device)
    A, nan = streams.pattern(head)[t, : t + 1], float("nan")
    if not streams.scored:
        key = int(A.argmax())
        yield Attended(head, t + 1, key + 1, float(A[tokens == tokens[key]].sum()), 0, nan, nan, effect)
        return
    scores = streams.all_scores(head, query)[0, : t + 1]
    key = int(scores.argmax())
    others = scores.masked_fill(tokens == tokens[key], -torch.inf)
    rival = None if others.isinf().all() else int(others.argmax())
    signal, wrote = 0.0, dict[str, float]()
    for s, sign in ((key, 1), (rival, -1)):
        if s is None:
            continue
        for part, leaf in streams.scores(head, query, torch.full_like(query, s)):
            output = {"embed": table.words[t], "pos": f"p({t + 1})"}.get(part, part)
            ideal = partial(streams.score_signal, head, part, t)
            signal += table.add(head, t, s, leaf, output, ideal, sign=sign, query_part=part)
            for writer in leaf.path[:1]:
                wrote[writer] = wrote.get(writer, 0.0) + sign * float(leaf.value.sum())
    odds = float(scores[key] - (0 if rival is None else scores[rival]))
    table.close(head, t, odds)
    weight = float(A[tokens == tokens[key]].sum())
    yield Attended(head, t + 1, key + 1, weight, 0 if rival is None else rival + 1, odds, signal, effect)
    earlier = [writer for writer in wrote if writer[0] == "L"]
    if earlier:
        yield from _followed(table, max(earlier, key=lambda writer: wrote[writer]), key, nan)


def reasons(
    source: Any,
    batch: Sequences = None,
    *,
    step: "Steps" = None,
    task: Task | None = None,
    sequences: int | None = None,
    progress: Progress = None,
) -> pd.DataFrame:
    """One row per position of the task's main group: the predicted output's logit by memory, and the key that the head
    attends to.

    `logit` is the sum of the columns of the memories and `direct`; `written` is the contribution of the tokens at the
    head's key, on all paths. `odds`, `signal` and `interference` are as in `explain`, for the head of the last layer
    with the largest effect.

    >>> import induction_memory as im
    >>> table = im.probes.reasons("induction-small", step=600, sequences=2)
    >>> table[["predicted", "head", "attention", "odds", "signal"]].head(2).round(1)
      predicted  head  attention  odds  signal
    0         r  L2H1        1.0   9.0    11.1
    1         c  L2H1        1.0   7.7     8.6
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=sequences, progress=progress)
    return over_steps(chosen, lambda at: {"table": _of_positions(at)})["table"]


@torch.no_grad()
def _of_positions(at: At) -> pd.DataFrame:
    a, names, columns = Activations(at), words_of_outputs(at.chosen), dict[str, list]()
    for row, inside in enumerate(at.batch.group().to(a.logits.device)):
        positions = inside.nonzero().flatten()
        found = _of_sequence(Streams(a, row, deep=False), positions, names) if len(positions) else {}
        for name, values in found.items():
            columns.setdefault(name, []).extend(values)
    if not columns:
        raise UnsupportedError(f"needs positions of the group {at.batch.main}, the batch has none")
    return pd.DataFrame(columns).astype({"key": int, "rival": int})


def _of_sequence(streams: Streams, positions: Int[Tensor, " n"], names: Sequence[str]) -> dict[str, list]:
    tokens, logits = streams.tokens, streams.a.logits[streams.row, positions]
    y, rows = logits.argmax(-1), torch.arange(len(positions), device=positions.device)
    last = streams.graph.heads_of(streams.graph.n_layers)
    sums, effect = dict[str, Tensor](), {head: torch.zeros_like(logits[:, 0]) for head in last}
    read = {head: torch.zeros(len(positions), len(tokens)).to(logits) for head in last}
    for leaf in streams.logits(positions, y):
        memory = streams.memory(leaf.path[0]) if leaf.path else "direct"
        value = leaf.value.sum(-1)
        sums[memory] = sums.get(memory, 0.0) + value
        through = next((one for one in leaf.path if one[0] == "L"), "")
        if through in effect:
            effect[through] = effect[through] + value
            if leaf.part == "embed" and leaf.path[-1] == through:
                read[through] = read[through] + leaf.value
    logit = logits[rows, y]
    every = torch.stack(list(sums.values()))
    missing = float((logit - every.sum(0)).abs().max())
    if missing > ROUNDING * max(1.0, float(every.abs().sum(0).max())):
        raise UnsupportedError(f"needs {WHOLE}: of the logits, a sum over them misses {missing:.3g}")
    best = torch.stack([effect[head].abs() for head in last]).argmax(0)
    columns = {name: torch.zeros_like(logit) for name in ("key", "attention", "rival", "odds", "signal", "written")}
    for number, head in enumerate(last):
        mine = best == number
        A, scores = streams.pattern(head)[positions], streams.all_scores(head, positions)
        key = scores.argmax(-1)
        same = tokens[None] == tokens[key][:, None]
        most, rival = scores.masked_fill(same, -torch.inf).max(-1)
        alone = most.isinf()
        against = _signal(streams, head, positions, rival)
        found = {"key": key + 1, "attention": (A * same).sum(-1), "written": (read[head] * same).sum(-1)}
        found |= {"rival": (rival + 1) * ~alone, "odds": scores[rows, key] - most.masked_fill(alone, 0)}
        found["signal"] = _signal(streams, head, positions, key) - against.masked_fill(alone, 0)
        columns = {name: torch.where(mine, found[name].to(logit), own) for name, own in columns.items()}
    table: dict[str, list] = {"sequence": [streams.row] * len(y), "position": (positions + 1).tolist()}
    table |= {"predicted": [names[j] for j in y.tolist()], "logit": logit.tolist()}
    table |= {memory: value.tolist() for memory, value in sorted(sums.items())}
    return table | {"head": [last[i] for i in best.tolist()]} | {name: own.tolist() for name, own in columns.items()}


def _signal(streams: Streams, head: str, queries: Tensor, keys: Tensor) -> Float[Tensor, " n"]:
    """The contribution of ideal pairs of tokens to scores."""
    found = torch.zeros(len(queries)).to(streams.part("embed"))
    stored = streams.ideal(f"W_K{layer_of(head)}")
    if stored is not None and stored.inputs == "token":
        tokens = streams.tokens
        pairs = torch.from_numpy(stored.strength != 0).to(tokens.device)[tokens[queries]][:, tokens]
        for _, leaf in streams.scores(head, queries, keys, ["embed"]):
            if leaf.part == "embed" and len(leaf.path) == 1 and leaf.path[0][0] == "L":
                found = found + (leaf.value * pairs).sum(-1)
    return found
