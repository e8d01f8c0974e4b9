"""Games among the heads of a model, each solved by Shapley values.

The value v(S) of a coalition S of heads is the mean value of the questions (questions.py) when the heads outside S are
cut: replaced as in an ablation.

    all      every head of the model; absent heads are cut for all their readers
    layer    the heads of one layer, the other layers as they are
    q, k, v  the heads of one layer, cut only where later heads' queries (keys, values) read them
    out      the heads of one layer, cut only where the output, or the last layer's feed-forward, reads them
    ff       the heads of one layer, cut only where a feed-forward before the last layer's reads them

The last five are the *routes* by which a head can have an effect. Each is path patching of every subset of a layer's
heads. A redundant head has no effect when ablated alone, but a non-zero Shapley value.

A model in which each reader sees only some heads: all such variants at once, sharing common computations.

If a head is not in the coalition of a route (routes.py), the readers of that route see the replacement r_h of an
ablation (`interventions.replacements`) instead of the head's output y_h. Layer l has

    seen by a route  = x + sum over the heads h absent for it of (r_h - y_h)
    y_h              = head h, of the streams seen by q, k and v
    x_{l+1}          = x_l + sum over h of y_h + b_O + FF_l(seen by ff, or by out in the last layer)

A coalition of heads that is the same for every route is a model without the other heads. Variants whose q, k and v see
the same heads share a layer's attention, and those whose ff sees the same heads share its feed-forward, so variants
form a tree over the layers. Attention is never computed where nothing has changed. Coalitions of the last layer's heads
need no attention of their own: their outputs are sums of the same terms, needed only at the questions. With four heads
in two layers, the 256 coalitions need 15 attention layers instead of 512.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from induction_memory.heads.metric_positions import Metric, Questions, ask
from induction_memory.heads.routes import ROUTES, edges
from induction_memory.heads.shapley import EXACT, ORDERS, Solution, all_coalitions, solve
from induction_memory.interventions.ablations import Kind, Replacements
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph
from induction_memory.runner.fast import FastRunner
from induction_memory.runner.network import Layer, Network, attend
from induction_memory.runner.recording import Patch, Recording, Runner
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task

LOGITS_AT_ONCE = 2**24  # numbers in the logits of one group of coalitions
TOKENS_AT_ONCE = 2048  # tokens of the sequences that are evaluated together, which must fit the CPU caches

Present = Bool[Tensor, "coalition route player"]
Stream = Float[Tensor, "batch pos d_model"]
Changes = Float[Tensor, "player batch pos d_model"]
Written = Float[Tensor, "head batch m d_model"]


def coalition_sums(
    recording: Recording, absent: dict[str, Tensor], present: Present, questions: Questions
) -> Float64[Tensor, "coalition batch"]:
    """The value of each variant, one sum per sequence: `present` says which heads the readers of each route see.

    Routes in the order of ROUTES, players in the order of `recording.graph.heads`.
    """
    result = torch.zeros(len(present), len(recording.tokens), dtype=torch.float64)
    runner = recording.runner
    with torch.no_grad():
        if isinstance(runner, FastRunner):
            at_once = max(1, TOKENS_AT_ONCE // recording.tokens.shape[1])
            with runner.network(recording) as network:
                for first in range(0, len(recording.tokens), at_once):
                    some = slice(first, first + at_once)
                    tree = _Tree(recording, network, absent, present, questions, some)
                    nothing = recording.layer(1, "hook_resid_pre")[None, some][:0]
                    tree.descend(1, None, nothing, torch.arange(len(present)))
                    result[:, some] = tree.result
        else:
            variants = [_without(recording, absent, one) for one in present]
            for indices, logits in recording.run(variants, queries=questions.queries):
                result[indices] = questions.sums(logits)
    return result


def _without(recording: Recording, absent: dict[str, Tensor], present: Bool[Tensor, "route player"]) -> list[Patch]:
    """The patches that cut heads where the routes do not see them."""
    graph, patches = recording.graph, list[Patch]()
    for head, seen in zip(graph.heads, present.T.tolist(), strict=True):
        routes = [route for route, there in zip(ROUTES, seen, strict=True) if not there]
        cut = [head] if len(routes) == len(ROUTES) else [edge for route in routes for edge in edges(graph, head, route)]
        patches += [Patch(site, absent[head]) for site in cut]
    return patches


class _Tree:
    """The variants on some sequences."""

    def __init__(
        self,
        recording: Recording,
        network: Network,
        absent: dict[str, Tensor],
        present: Present,
        questions: Questions,
        some: slice,
    ) -> None:
        self.recording, self.network, self.present, self.some = recording, network, present, some
        self.graph, self.questions = recording.graph, questions.of(some)
        self.result = torch.zeros(len(present), len(self.questions.queries), dtype=torch.float64)
        whole = {head: value.expand(*recording.tokens.shape, -1) for head, value in absent.items()}
        self.replaced = [self._heads(layer, whole.__getitem__) for layer in range(1, self.graph.n_layers + 1)]

    def descend(self, layer: int, x: Stream | None, changes: Changes, members: Int[Tensor, " coalition"]) -> None:
        """Evaluate the variants `members`, which have the same stream x before `layer` (None: the recorded one).

        `changes` has r_h - y_h of every head before `layer`.
        """
        before = self.recording.layer(layer, "hook_resid_pre")[self.some] if x is None else x
        asked, earlier = self._asked(layer, before), self._asked(layer, changes)
        for seen, same in self._groups(members, "qkv", layer - 1):
            intact = x is None and bool(seen.all())
            written = self._heads(layer) if intact else self._written(layer, before, changes, seen)
            known = torch.cat([earlier, self.replaced[layer - 1] - written])
            after = asked + written.sum(0) + self.network[layer].attention["b_O"]
            if layer == self.graph.n_layers:
                self._read_out(asked, after, known, same)
            else:
                self._go_on(layer, before, after, known, same, intact)

    def _go_on(
        self, layer: int, before: Stream, after: Stream, changes: Changes, members: Tensor, intact: bool
    ) -> None:
        """From a layer's heads to its feed-forward and the next layer."""
        feed_forward, parallel = self.network[layer].feed_forward, self.graph.parallel
        if feed_forward is None:
            self.descend(layer + 1, None if intact else after, changes, members)
            return
        for (seen,), same in self._groups(members, ["ff"], layer - parallel):
            if intact and bool(seen.all()):
                self.descend(layer + 1, None, changes, same)
            else:
                read = _seen(before if parallel else after, changes, seen.tolist())
                self.descend(layer + 1, after + feed_forward(read), changes, same)

    def _read_out(self, before: Stream, after: Stream, changes: Changes, members: Tensor) -> None:
        """The values of variants that differ in what the output sees, from the last layer's rows."""
        earlier = len(changes) - self.graph.n_heads
        for some in members.split(self._at_once()):
            missing = (~self.present[some, ROUTES.index("out")]).to(changes)
            x = after + torch.einsum("cp,pbmd->cbmd", missing, changes)
            x_before = None
            if self.graph.parallel:
                x_before = before + torch.einsum("cp,pbmd->cbmd", missing[:, :earlier], changes[:earlier])
            self.result[some] = self.questions.sums(self._logits(x, x_before))

    def _logits(
        self, x: Float[Tensor, "*lead d_model"], before: Float[Tensor, "*lead d_model"] | None
    ) -> Float[Tensor, "*lead vocab"]:
        """The logits of the stream after the last layer's heads; `before` them if the feed-forward reads that."""
        network, feed_forward = self.network, self.network[self.graph.n_layers].feed_forward
        if network.tail is not None:
            return network.tail(x)
        if feed_forward is not None:
            x = x + feed_forward(x if before is None else before)
        return network.unembed(x)

    def _groups(
        self, members: Int[Tensor, " coalition"], routes: Sequence[str], layers: int
    ) -> Iterator[tuple[Bool[Tensor, "route player"], Int[Tensor, " coalition"]]]:
        """Groups of variants for which these routes see the same heads of the first layers, and these heads."""
        chosen = [ROUTES.index(route) for route in routes]
        seen = self.present[members][:, chosen, : layers * self.graph.n_heads]
        if seen.numel() == 0:
            yield seen[0], members
            return
        kinds, which = seen.unique(dim=0, return_inverse=True)
        for i, kind in enumerate(kinds):
            yield kind, members[which == i]

    def _heads(self, layer: int, values: Callable[[str], Tensor] | None = None) -> Written:
        """What each head of a layer wrote in the intact run, or other values by head."""
        heads = self.graph.heads_of(layer)
        return self._asked(layer, torch.stack([(values or self.recording.at)(head)[self.some] for head in heads]))

    def _asked(self, layer: int, x: Float[Tensor, "*lead pos d_model"]) -> Float[Tensor, "*lead m d_model"]:
        """The rows of the questions, in the last layer. The others are not needed there."""
        queries = self.questions.queries
        rows = torch.arange(len(queries), device=queries.device)[:, None]
        return x[..., rows, queries, :] if layer == self.graph.n_layers else x

    def _written(self, layer: int, before: Stream, changes: Changes, seen: Bool[Tensor, "3 player"]) -> Written:
        """What each head of a layer writes, given the streams that its queries, keys and values see."""
        weights, masks = self.network[layer], [tuple(mask) for mask in seen.tolist()]
        streams = {mask: weights.norm(_seen(before, changes, mask)) for mask in set(masks)}
        x_q, x_k, x_v = (streams[mask] for mask in masks)
        if layer == self.graph.n_layers and weights.rotary is None:
            z = attend_from(self._asked(layer, x_q), x_k, x_v, weights, self.questions.queries)
            return torch.einsum("bmhe,hed->hbmd", z, weights.W_O)
        q, k, v = (weights.project(x, one)[0][None] for x, one in zip((x_q, x_k, x_v), "qkv", strict=True))
        z = attend(weights.rotated(q), weights.rotated(k), v, weights.scale)[0]
        return self._asked(layer, torch.einsum("bphe,hed->hbpd", z, weights.W_O))

    def _at_once(self) -> int:
        return max(1, LOGITS_AT_ONCE // (self.questions.queries.numel() * self.recording.logits.shape[-1]))


def attend_from(
    x_q: Float[Tensor, "batch m d_model"], x_k: Stream, x_v: Stream, weights: Layer, queries: Int[Tensor, "batch m"]
) -> Float[Tensor, "batch m head d_head"]:
    """Attention of a few queries by (W_K^T q)^T x_s and W_V sum_s A x_s, so that no key or value has to be computed.

    b_K is left out: it adds the same number to the scores of all keys, which does not change the attention.
    """
    W_K, W_V, b_V = (weights.attention[name] for name in ("W_K", "W_V", "b_V"))
    q = weights.project(x_q, "q")[0] / weights.scale
    read = torch.einsum("bmhe,hde->bhmd", q, W_K)
    later = torch.arange(x_k.shape[1], device=x_k.device) > queries[:, None, :, None]
    scores = (read.flatten(1, 2) @ x_k.mT).view(*read.shape[:3], -1)
    attention = scores.masked_fill_(later, -torch.inf).softmax(-1)
    attended = (attention.flatten(1, 2) @ x_v).view_as(read)
    return torch.einsum("bhmd,hde->bmhe", attended, W_V) + b_V


def _seen(x: Stream, changes: Changes, present: Sequence[bool]) -> Stream:
    """The stream in which the absent heads are replaced."""
    for player, there in enumerate(present):
        x = x if there else x + changes[player]
    return x


@dataclass(frozen=True, eq=False)
class Game:
    """A game and its solution."""

    name: str
    layer: int
    """The layer of its players; 0 for all of them."""
    players: tuple[str, ...]
    solution: Solution


@dataclass(frozen=True, eq=False)
class ValueFunction:
    """The value of coalitions of a model's heads on a batch, from one recorded run."""

    recording: Recording
    batch: Batch
    absent: dict[str, Tensor]
    """Head -> what replaces its output when it is cut."""
    questions: Questions
    rng: np.random.Generator
    """Draws random orders for games that have too many coalitions to evaluate them all."""
    orders: int = ORDERS
    task: Task | None = None
    """Says which keys the roles of heads are about; None for any tokens."""
    known: dict[bytes, Tensor] = field(default_factory=dict, repr=False)
    """Heads that each route sees -> the value, one sum per sequence. Games share what has been evaluated."""

    @property
    def graph(self) -> Graph:
        return self.recording.graph

    def coalitions(self, coalitions: Bool[Tensor, "coalition player"]) -> Float64[Tensor, "coalition batch"]:
        """The values of coalitions of all heads, one sum per sequence."""
        return self.values(coalitions.unsqueeze(1).expand(-1, len(ROUTES), -1))

    def values(self, present: Bool[Tensor, "coalition route player"]) -> Float64[Tensor, "coalition batch"]:
        """The values when the readers of each route see the present heads only; each is evaluated once."""
        keys = [one.numpy().tobytes() for one in present]
        missing = {key: one for key, one in zip(keys, present, strict=True) if key not in self.known}
        if missing:
            new = coalition_sums(self.recording, self.absent, torch.stack(list(missing.values())), self.questions)
            self.known.update(zip(missing, new, strict=True))
        return torch.stack([self.known[key] for key in keys])

    def patched(self, variants: list[list[Patch]]) -> Float64[Tensor, "variant batch"]:
        """The values of patched runs, one sum per sequence."""
        result = torch.empty(len(variants), len(self.batch), dtype=torch.float64)
        with torch.no_grad():
            for indices, logits in self.recording.run(variants, queries=self.questions.queries):
                result[indices] = self.questions.sums(logits)
        return result


def value_function(
    model: nn.Module | Runner,
    batch: Batch,
    *,
    kind: Kind = "mean",
    metric: Metric = "logit",
    initial: Mapping[str, Tensor] | nn.Module | None = None,
    orders: int = ORDERS,
    task: Task | None = None,
    seed: int = 0,
) -> ValueFunction:
    """Run the model once and find what replaces each head."""
    recording = record(model, batch.tokens)
    batch = batch.to(recording.logits.device)
    replacements = Replacements(recording, batch, initial, seed)
    with torch.no_grad():
        absent = {head: replacements.value(head, kind) for head in recording.graph.heads}
    questions, rng = ask(batch, metric, seed=seed), np.random.default_rng(seed)
    return ValueFunction(recording, batch, absent, questions, rng, orders, task)


def solve_games(v: ValueFunction) -> list[Game]:
    """All games of a model. The small ones are evaluated together first, because they share coalitions."""
    graph = v.graph
    rules: list[tuple[str, int, Sequence[str]]] = [("all", 0, ROUTES)]
    for layer in range(1, graph.n_layers + 1):
        rules.append(("layer", layer, ROUTES))
        rules += [(route, layer, [route]) for route in ROUTES if edges(graph, graph.heads_of(layer)[0], route)]
    small = [(layer, routes) for _, layer, routes in rules if len(_players(graph, layer)) <= EXACT]
    if small:
        v.values(torch.cat([_present(graph, *one, all_coalitions(len(_players(graph, one[0])))) for one in small]))
    return [Game(name, layer, _players(graph, layer), _solve(v, name, layer, routes)) for name, layer, routes in rules]


def _solve(v: ValueFunction, name: str, layer: int, routes: Sequence[str]) -> Solution:
    def evaluate(subsets: Tensor) -> Tensor:
        return v.values(_present(v.graph, layer, routes, subsets))

    return solve(len(_players(v.graph, layer)), evaluate, v.rng, v.orders, pairs=name == "all")


def _players(graph: Graph, layer: int) -> tuple[str, ...]:
    return graph.heads_of(layer) if layer else graph.heads


def _present(
    graph: Graph, layer: int, routes: Sequence[str], subsets: Bool[Tensor, "coalition player"]
) -> Bool[Tensor, "coalition route head"]:
    """Which heads each route sees if the players outside a subset are absent for some routes."""
    players = torch.tensor([head in _players(graph, layer) for head in graph.heads])
    for_route = torch.ones(len(subsets), len(graph.heads), dtype=torch.bool)
    for_route[:, players] = subsets
    cut = torch.tensor([route in routes for route in ROUTES])
    return for_route[:, None] | ~cut[:, None]
