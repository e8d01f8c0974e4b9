"""The games that the heads of a model play, each worked out by Shapley values.

    all      every head of the model; absent heads are cut for all their readers
    layer    the heads of one layer, the other layers as they are
    q, k, v  the heads of one layer, cut only where later heads' queries (keys, values) read them
    out      the heads of one layer, cut only where the output, or the last layer's feed-forward, reads them
    ff       the heads of one layer, cut only where an earlier feed-forward reads it

The last four are the *routes* by which a head can matter. They are path patching, done to every subset of a layer's
heads and not to one head at a time: a head whose work another can take over shows no effect when it alone is cut, by no
route, and yet has its share.
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
from induction_memory.task.sampler import Batch

ROUTES = ("out", "ff", "q", "k", "v")
AT_ONCE = 32  # coalitions whose changes to the stream are held at a time


@dataclass(frozen=True, eq=False)
class Game:
    """A game with its answer."""

    name: str
    layer: int
    """The layer of its players; 0 for all of them."""
    players: tuple[str, ...]
    solution: Solution


@dataclass(frozen=True, eq=False)
class Stage:
    """A model on a batch, run once: what the intact heads wrote, what replaces them, what is asked."""

    recording: Recording
    batch: Batch
    absent: dict[str, Tensor]
    """Head -> what stands in its place when it is cut."""
    questions: Questions
    rng: np.random.Generator
    """Draws the orders of games that are too large to be worked out in full."""
    orders: int = ORDERS
    worth: dict[bytes, Tensor] = field(default_factory=dict, repr=False)
    """Coalition of all heads -> its worth, a sum a sequence; games share what they have worked out."""

    @property
    def graph(self) -> Graph:
        return self.recording.graph

    def coalitions(self, coalitions: Bool[Tensor, "coalition player"]) -> Float64[Tensor, "coalition batch"]:
        """The worth of coalitions of all heads; each is worked out once."""
        keys = [row.numpy().tobytes() for row in coalitions]
        missing = {key: row for key, row in zip(keys, coalitions, strict=True) if key not in self.worth}
        if missing:
            new = coalition_sums(self.recording, self.absent, torch.stack(list(missing.values())), self.questions)
            self.worth.update(zip(missing, new, strict=True))
        return torch.stack([self.worth[key] for key in keys])

    def patched(self, variants: list[list[Patch]]) -> Float64[Tensor, "variant batch"]:
        """The worth of runs with other patches than whole heads cut."""
        result = torch.empty(len(variants), len(self.batch), dtype=torch.float64)
        with torch.no_grad():
            for indices, logits in self.recording.run(variants, queries=self.questions.queries):
                result[indices] = self.questions.sums(logits)
        return result


def set_stage(
    model: nn.Module | Runner,
    batch: Batch,
    *,
    kind: Kind = "mean",
    metric: Metric = "logit",
    initial: Mapping[str, Tensor] | nn.Module | None = None,
    orders: int = ORDERS,
    seed: int = 0,
) -> Stage:
    """Run the model once and work out what replaces each head."""
    recording = record(model, batch.tokens)
    replacements = Replacements(recording, batch, initial, seed)
    with torch.no_grad():
        absent = {head: replacements.value(head, kind) for head in recording.graph.heads}
    return Stage(recording, batch, absent, ask(batch, metric, seed=seed), np.random.default_rng(seed), orders)


def play(stage: Stage) -> list[Game]:
    """All games of a model."""
    graph = stage.graph
    games = [Game("all", 0, graph.heads, solve(len(graph.heads), stage.coalitions, stage.rng, stage.orders))]
    for layer in range(1, graph.n_layers + 1):
        games.append(Game("layer", layer, graph.heads_of(layer), _layer(stage, layer)))
        for route in ROUTES:
            if edges(graph, graph.heads_of(layer)[0], route):
                games.append(Game(route, layer, graph.heads_of(layer), _route(stage, layer, route)))
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


def _layer(stage: Stage, layer: int) -> Solution:
    graph = stage.graph
    ours = torch.tensor([layer_of(head) == layer for head in graph.heads])

    def evaluate(subsets: Tensor) -> Tensor:
        coalitions = torch.ones(len(subsets), len(graph.heads), dtype=torch.bool)
        coalitions[:, ours] = subsets
        return stage.coalitions(coalitions)

    return solve(graph.n_heads, evaluate, stage.rng, stage.orders, pairs=False)


def _route(stage: Stage, layer: int, route: str) -> Solution:
    """The change that the cut heads make together, sum of r_h - y_h, goes to each reader on the first head's edge."""
    heads, recording = stage.graph.heads_of(layer), stage.recording
    own = recording.at(heads[0])
    with torch.no_grad():
        change = torch.stack([(stage.absent[head] - recording.at(head)).flatten() for head in heads])

    def worth(subset: Tensor) -> Tensor:
        missing = (~subset).to(change.dtype) @ change
        values = own + missing.unflatten(-1, own.shape)
        sites = edges(stage.graph, heads[0], route)
        return stage.patched([[Patch(site, value) for site in sites] for value in values])

    def evaluate(subsets: Tensor) -> Tensor:
        return torch.cat([worth(group) for group in subsets.split(AT_ONCE)])

    return solve(len(heads), evaluate, stage.rng, stage.orders, pairs=False)
