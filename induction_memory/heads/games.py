"""Games among the heads of a model, each solved by Shapley values.

The questions are positions where the context determines the right output o. The value of a run is the mean over
questions of

    logit             the right output's logit above the average, y_o - mean_j y_j (the default)
    log-probability   log softmax(y)_o
    accuracy          1 where the right output has the largest logit

stored as one sum per sequence, so that every difference of two runs has a standard error over sequences
(`task/batch.ratio`). The value v(S) of a coalition S of heads is the value of the run in which the heads outside S are
ablated (`interventions.Replacements`).

    all      every head of the model; absent heads are ablated for all their readers
    layer    the heads of one layer, with the other layers intact
    q, k, v  the heads of one layer, ablated only where later heads' queries (keys, values) read them
    out      the heads of one layer, ablated only where the output, or the last layer's feed-forward, reads them
    ff       the heads of one layer, ablated only where a feed-forward before the last layer reads them

The last five are the *routes* by which a head can have an effect, named after the readers of its output. Each is path
patching of every subset of a layer's heads. A redundant head has no effect when ablated alone, but a non-zero Shapley
value.

A head that is absent for all routes is patched where it writes; a head that is absent for some routes is patched on the
edges of these routes. Coalitions that differ only in the last layer share their run up to its attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from induction_memory.errors import require, require_known
from induction_memory.heads.shapley import EXACT, ORDERS, Solution, all_coalitions, solve
from induction_memory.interventions.ablations import Kind, Replacements
from induction_memory.interventions.scores import is_right
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph
from induction_memory.runner.recording import Patch, Recording, Runner
from induction_memory.task.batch import Batch, ratio
from induction_memory.task.protocol import Task

Metric = Literal["logit", "log-probability", "accuracy"]
PER_SEQUENCE = 8
"""Questions per sequence. More sequences add more information than more questions per sequence."""


@dataclass(frozen=True, eq=False)
class Questions:
    """The positions of the questions, and the right outputs there."""

    queries: Int[Tensor, "batch m"]
    """Positions."""
    targets: Int[Tensor, "batch m"]
    """The right outputs."""
    asked: Bool[Tensor, "batch m"]
    """False for padding, in sequences with fewer than m questions."""
    metric: Metric = "logit"

    def sums(self, logits: Float[Tensor, "*variant batch m vocab"]) -> Float64[Tensor, "*variant batch"]:
        """The value of runs, summed over the questions of each sequence, as a tensor on the CPU."""
        targets = self.targets.expand(logits.shape[:-1]).unsqueeze(-1)
        if self.metric == "accuracy":
            values = is_right(logits, targets.squeeze(-1))
        else:
            level = logits.mean(-1) if self.metric == "logit" else logits.logsumexp(-1)
            values = logits.gather(-1, targets).squeeze(-1) - level
        return (values.double() * self.asked).sum(-1).cpu()

    def mean(
        self, sums: Float64[Tensor, "*variant batch"]
    ) -> tuple[Float64[Tensor, "*variant"], Float64[Tensor, "*variant"]]:
        """Mean per question and its standard error over sequences (nan if a single sequence has questions)."""
        return ratio(sums, self.asked.double().sum(1).cpu())


def ask(batch: Batch, metric: Metric = "logit", *, at_most: int = PER_SEQUENCE, seed: int = 0) -> Questions:
    """Up to `at_most` positions of each sequence from the main group of the batch, chosen at random."""
    require_known(metric, get_args(Metric), "metric")
    require(at_most >= 1, "questions", "1 or more per sequence", at_most)
    possible = batch.group()
    require(bool(possible.any()), "batch", f"a position of the group {batch.main}", "none")
    require(not batch.soft, "batch", "sequences with one right output for each position", "soft targets")
    m = min(at_most, int(possible.sum(1).max()))
    order = torch.rand(possible.shape, generator=torch.Generator().manual_seed(seed)).to(possible.device)
    queries = order.masked_fill(~possible, -1).topk(m, dim=1).indices
    return Questions(queries, batch.targets.gather(1, queries), possible.gather(1, queries), metric)


ROUTES = ("out", "ff", "q", "k", "v")


def edges(graph: Graph, head: str, route: str) -> list[str]:
    """The edges by which a head reaches the readers of a route; none if the model does not allow all of them."""
    if route in ("q", "k", "v"):
        readers = [name for name in graph.inputs if name.endswith(f".{route}")]
    elif route == "ff":
        readers = [f"FF{layer}" for layer in graph.feed_forwards if layer < graph.n_layers]
    else:
        readers = [f"FF{graph.n_layers}"] if graph.n_layers in graph.feed_forwards else []
        readers.append("out")
    found = [f"{head}->{name}" for name in readers if head in graph.writers_before(name)]
    return found if all(map(graph.allows, found)) else []


@dataclass(frozen=True, eq=False)
class Game:
    """A game and its solution."""

    name: str
    layer: int
    """The layer of its players; 0 for all layers."""
    players: tuple[str, ...]
    solution: Solution


@dataclass(frozen=True, eq=False)
class ValueFunction:
    """The value of coalitions of a model's heads on a batch, from one recorded run."""

    recording: Recording
    batch: Batch
    absent: dict[str, Tensor]
    """Head -> what replaces its output when it is ablated."""
    questions: Questions
    rng: np.random.Generator
    """Draws random orders for games with too many coalitions."""
    orders: int = ORDERS
    task: Task | None = None
    """The task, which names the keys that define the roles; None for raw tokens."""
    known: dict[bytes, Tensor] = field(default_factory=dict, repr=False)
    """The heads present for each route -> the value, one sum per sequence. Games share these values."""

    def coalitions(self, coalitions: Bool[Tensor, "coalition player"]) -> Float64[Tensor, "coalition batch"]:
        """The values of coalitions of all heads, one sum per sequence."""
        return self.values(coalitions.unsqueeze(1).expand(-1, len(ROUTES), -1))

    def values(self, present: Bool[Tensor, "coalition route player"]) -> Float64[Tensor, "coalition batch"]:
        """The values if the readers of each route see only the heads present for it; equal cases are evaluated once."""
        graph = self.recording.graph
        keys = [seen.mT.flatten().numpy().tobytes() for seen in present]
        places = {key: row for row, key in enumerate(keys) if key not in self.known}
        order, variants = sorted(places), []  # neighbours agree on the earlier layers' heads
        for key in order:
            variants.append(list[Patch]())
            for head, seen in zip(graph.heads, present[places[key]].T.tolist(), strict=True):
                cut = [route for route, there in zip(ROUTES, seen, strict=True) if not there]
                sites = [edge for route in cut for edge in edges(graph, head, route)] if any(seen) else [head]
                variants[-1] += [Patch(site, self.absent[head]) for site in sites]
        if variants:
            self.known.update(zip(order, self.patched(variants), strict=True))
        return torch.stack([self.known[key] for key in keys])

    def patched(self, variants: list[list[Patch]]) -> Float64[Tensor, "variant batch"]:
        """The values of patched runs, one sum per sequence."""
        with torch.no_grad():
            runs = self.recording.run(variants, queries=self.questions.queries)
            return torch.stack(list(map(self.questions.sums, runs)))


def value_function(
    model: nn.Module | Runner,
    batch: Batch,
    *,
    kind: "Kind" = "mean",
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
    graph = v.recording.graph
    rules = [("all", 0, graph.heads, ROUTES)]
    for layer in range(1, graph.n_layers + 1):
        players = graph.heads_of(layer)
        rules.append(("layer", layer, players, ROUTES))
        rules += [(route, layer, players, (route,)) for route in ROUTES if edges(graph, players[0], route)]
    small = [
        _seen(graph.heads, players, routes, all_coalitions(len(players)))
        for *_, players, routes in rules
        if len(players) <= EXACT
    ]
    if small:
        v.values(torch.cat(small))
    games = []
    for name, layer, players, routes in rules:
        solution = solve(
            len(players),
            lambda subsets, players=players, routes=routes: v.values(_seen(graph.heads, players, routes, subsets)),
            v.rng,
            v.orders,
            pairs=name == "all",
        )
        games.append(Game(name, layer, players, solution))
    return games


def _seen(
    heads: Sequence[str], players: Sequence[str], routes: Sequence[str], subsets: Bool[Tensor, "coalition player"]
) -> Bool[Tensor, "coalition route head"]:
    """Whether each head is present for each route, if the players outside a subset are absent for `routes`."""
    present = torch.ones(len(subsets), len(heads), dtype=torch.bool)
    present[:, torch.from_numpy(np.isin(heads, players))] = subsets
    whole = torch.from_numpy(~np.isin(ROUTES, routes))
    return present[:, None] | whole[:, None]
