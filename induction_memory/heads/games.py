"""Games among the heads of a model, each solved by Shapley values.

The value v(S) of a coalition S of heads is the mean value of the questions (questions.py) when the heads outside S are
cut: replaced as in an ablation.

    all      every head of the model; absent heads are cut for all their readers
    layer    the heads of one layer, the other layers as they are
    q, k, v  the heads of one layer, cut only where later heads' queries (keys, values) read them
    out      the heads of one layer, cut only where the output, or the last layer's feed-forward, reads them
    ff       the heads of one layer, cut only where an earlier feed-forward reads it

The last five are the *routes* by which a head can have an effect. Each is path patching of every subset of a layer's
heads. A redundant head has no effect when ablated alone, but a non-zero Shapley value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from induction_memory.heads.coalitions import coalition_sums
from induction_memory.heads.questions import Metric, Questions, ask
from induction_memory.heads.shapley import ORDERS, Solution, solve
from induction_memory.interventions.replacements import Kind, Replacements
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph, layer_of
from induction_memory.runner.recording import Recording, Runner
from induction_memory.runner.variants import Patch
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task

ROUTES = ("out", "ff", "q", "k", "v")
AT_ONCE = 32
"""Coalitions whose changes to the residual stream are in memory at the same time."""


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
    """Draws the orders of games with too many coalitions to evaluate all."""
    orders: int = ORDERS
    task: Task | None = None
    """Says which keys the roles of heads are about; None for any tokens."""
    known: dict[bytes, Tensor] = field(default_factory=dict, repr=False)
    """Coalition of all heads -> its value, one sum per sequence. Games share what has been evaluated."""

    @property
    def graph(self) -> Graph:
        return self.recording.graph

    def coalitions(self, coalitions: Bool[Tensor, "coalition player"]) -> Float64[Tensor, "coalition batch"]:
        """The values of coalitions of all heads, one sum per sequence; each is evaluated once."""
        keys = [row.numpy().tobytes() for row in coalitions]
        missing = {key: row for key, row in zip(keys, coalitions, strict=True) if key not in self.known}
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
    """All games of a model."""
    graph = v.graph
    games = [Game("all", 0, graph.heads, solve(len(graph.heads), v.coalitions, v.rng, v.orders))]
    for layer in range(1, graph.n_layers + 1):
        games.append(Game("layer", layer, graph.heads_of(layer), _layer(v, layer)))
        for route in ROUTES:
            if edges(graph, graph.heads_of(layer)[0], route):
                games.append(Game(route, layer, graph.heads_of(layer), _route(v, layer, route)))
    return games


def edges(graph: Graph, head: str, route: str) -> list[str]:
    """The edges by which a head reaches what the route names."""
    if route in ("q", "k", "v"):
        readers = [name for name in graph.inputs if name.endswith(f".{route}")]
    elif route == "ff":
        readers = [f"FF{layer}" for layer in graph.feed_forwards if layer < graph.n_layers]
    else:
        readers = [f"FF{graph.n_layers}"] if graph.n_layers in graph.feed_forwards else []
        readers.append("out")
    return [f"{head}->{name}" for name in readers if head in graph.writers_before(name)]


def _layer(v: ValueFunction, layer: int) -> Solution:
    graph = v.graph
    ours = torch.tensor([layer_of(head) == layer for head in graph.heads])

    def evaluate(subsets: Tensor) -> Tensor:
        coalitions = torch.ones(len(subsets), len(graph.heads), dtype=torch.bool)
        coalitions[:, ours] = subsets
        return v.coalitions(coalitions)

    return solve(graph.n_heads, evaluate, v.rng, v.orders, pairs=False)


def _route(v: ValueFunction, layer: int, route: str) -> Solution:
    """The sum of the changes r_h - y_h of all cut heads is patched into the first head's edge to each reader."""
    heads, recording = v.graph.heads_of(layer), v.recording
    own = recording.at(heads[0])
    with torch.no_grad():
        change = torch.stack([(v.absent[head] - recording.at(head)).flatten() for head in heads])

    def value(subset: Tensor) -> Tensor:
        missing = (~subset).to(change) @ change
        written = own + missing.unflatten(-1, own.shape)
        sites = edges(v.graph, heads[0], route)
        return v.patched([[Patch(site, output) for site in sites] for output in written])

    def evaluate(subsets: Tensor) -> Tensor:
        return torch.cat([value(group) for group in subsets.split(AT_ONCE)])

    return solve(len(heads), evaluate, v.rng, v.orders, pairs=False)
