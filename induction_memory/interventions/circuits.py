"""Circuits: the few edges that matter, and how much of the model's performance they explain.

Ablating an edge (by one of the kinds of `im.ablate`) lowers M, the mean logit of the right output above the mean logit
at the positions of the task's main group. Edges are ranked by that loss, exactly (one run per edge) or by its
derivative (one backward pass for all, or integrated over several). The circuit of the first n edges E_n is scored by

    faithfulness(n)   (M(only E_n) - M(nothing)) / (M(everything) - M(nothing))    does the circuit suffice?
    completeness(n)   (M(everything) - M(all but E_n)) / (M(everything) - M(nothing))    does everything depend on it?

where all edges that are not kept are ablated together. Random orders of the edges are the baseline.

The known circuit of an induction head with one head per layer (Figure 1, equation 7) has seven edges: in layer 1
positions match positions and the previous token is copied; in layer 2 the query's token matches this copy in the keys,
and the token found there is copied to the output.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require, require_known
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_integer, require_number, require_seed
from induction_memory.interventions.ablations import Kind, Replacements
from induction_memory.interventions.scores import edge_slopes, is_right
from induction_memory.runner.components import ARROW, Graph
from induction_memory.runner.recording import Patch, Recording, Runner, Via
from induction_memory.source.sources import Sequences, select
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task
from induction_memory.terminal import Progress, keeping, track
from induction_memory.trajectory.search import Steps

Ranking = Literal["exact", "gradient", "integrated"]
RANDOM = "random"
INDUCTION_HEAD = (
    "pos->L1H1.q",
    "pos->L1H1.k",
    "embed->L1H1.v",
    "embed->L2H1.q",
    "L1H1->L2H1.k",
    "embed->L2H1.v",
    "L2H1->out",
)


@field_docs
@dataclass(frozen=True, eq=False)
class Discovery:
    """The ranked edges of one model, its circuit, and the scores of circuits of each size."""

    edges: pd.DataFrame
    """One row per edge: the share of M lost without it, by each ranking."""
    curve: pd.DataFrame
    """One row per ranking and size n: faithfulness, completeness and in-context accuracy (means for random orders)."""
    circuit: tuple[str, ...]
    """The edges that matter, strongest first."""

    def against(self, known: Iterable[str] = INDUCTION_HEAD) -> dict[str, float]:
        """Precision and recall of the circuit, compared with a known circuit."""
        found, wanted = set(self.circuit), set(known)
        shared = len(found & wanted)
        return {"precision": shared / max(len(found), 1), "recall": shared / len(wanted)}


@dataclass(frozen=True, eq=False)
class _Bench:
    """A recorded run, its in-context positions, and what replaces each writer's output."""

    recording: Recording
    batch: Batch
    queries: Int[Tensor, "batch m"] | None
    """The in-context positions, if they are few enough to compute only these; None to compute all positions."""
    counted: Bool[Tensor, "batch m"]
    replacement: Mapping[str, Tensor]

    @property
    def graph(self) -> Graph:
        return self.recording.graph

    def without(self, edges: Iterable[str]) -> list[Patch]:
        return [Patch(edge, self.replacement[edge.split(ARROW)[0]]) for edge in edges]

    def performance(
        self, logits: Float[Tensor, "*variant batch m vocab"]
    ) -> tuple[Float[Tensor, "*variant"], Float[Tensor, "*variant"]]:
        """M and the accuracy of each variant."""
        targets = self.batch.targets if self.queries is None else self.batch.targets.gather(1, self.queries)
        targets = targets.expand(logits.shape[:-1])
        M = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.mean(-1)
        return M[..., self.counted].mean(-1), is_right(logits, targets)[..., self.counted].mean(-1)

    @torch.no_grad()
    def measure(self, variants: Sequence[Sequence[Patch]], done: list[int] | None = None) -> np.ndarray:
        """M and the accuracy of each variant, [2, variant]; with `done`, an interruption keeps the completed ones."""
        measured = np.full((2, len(variants)), np.nan)
        with nullcontext() if done is None else keeping(done, "circuits"):
            for i, logits in enumerate(self.recording.run(variants, queries=self.queries)):
                measured[:, i] = [value.item() for value in self.performance(logits)]
                if done is not None:
                    done.append(i)
        return measured


MOST_POINTS = 10_000
"""The largest number of points for integrated gradients."""


def discover(
    source: Any,
    batch: "Sequences" = None,
    *,
    kind: "Kind" = "mean",
    rankings: Sequence[Ranking] = get_args(Ranking),
    share: float = 0.05,
    points: int = 8,
    random_orders: int = 3,
    sizes: Sequence[int] | None = None,
    step: "Steps" = None,
    task: Task | None = None,
    via: Via | None = None,
    seed: int = 0,
    sequences: int | None = None,
    progress: "Progress" = None,
) -> Discovery:
    """Rank the edges of a model (or of one step of a trajectory), find its circuit, and score circuits of every size.

    The circuit has the edges whose effect, by the first ranking, is above `share` of the strongest one. `sizes` are the
    circuit sizes to score, by default all. An interruption keeps the circuits scored before it.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(2, im.task.step_rng(0, 0))
    >>> quick = {"rankings": ["exact"], "random_orders": 0, "sizes": [3]}
    >>> im.interventions.discover("induction-small", batch, **quick).circuit[:5]
    ('L2H1->out', 'embed->L2H1.v', 'embed->L1H1.v', 'L1H1->L2H1.k', 'embed->L2H1.q')
    """
    require_number(share, "share", 0, 1, open_low=True)
    require_integer(points, "points", 1, MOST_POINTS)
    require_integer(random_orders, "random_orders", 0, None)
    require_seed(seed)
    require(len(rankings) > 0, "rankings", "at least one", "none")
    for name in rankings:
        require_known(name, get_args(Ranking), "rankings")
    at = select(source, step=step, batch=batch, task=task, sequences=sequences, via=via).only
    initial = at.chosen.initial() if kind == "initial" or callable(kind) else None
    bench = _bench(at.runner, at.batch, kind, initial, seed)
    edges = bench.graph.edges
    (whole, nothing), _ = bench.measure([[], bench.without(edges)])
    span = whole - nothing
    table = pd.DataFrame({"edge": edges})
    with closing(track([*rankings, "curve"], "parts", progress=progress)) as parts:
        for name in rankings:
            next(parts)
            table[name] = _effects(bench, name, points) / span
        by_first = table.sort_values(rankings[0], ascending=False, ignore_index=True)
        strongest = by_first[rankings[0]].iloc[0]
        circuit = tuple(by_first["edge"][by_first[rankings[0]] > share * strongest])
        orders: list[tuple[str, list[str]]] = [
            (name, table.sort_values(name, ascending=False)["edge"].tolist()) for name in rankings
        ]
        rng = np.random.default_rng(seed)
        orders += [(RANDOM, [edges[i] for i in rng.permutation(len(edges))]) for _ in range(random_orders)]
        every = range(len(edges) + 1) if sizes is None else sizes
        for n in every:
            require(0 <= n <= len(edges), "sizes", f"0 to {len(edges)} (the edges)", n)
        next(parts)
        curve = _curve(bench, orders, every, (whole, nothing))
        next(parts, None)
    return Discovery(by_first, curve, circuit)


def _bench(runner: Runner, batch: Batch, kind: Kind, initial: Any, seed: int) -> _Bench:
    asked = batch.group()
    require(bool(asked.any()), "batch", f"at least one position of the group {batch.main}", "none")
    require(not batch.soft, "batch", "sequences with one right output for each position", "soft targets")
    recording = runner.record(batch.tokens)
    replacements = Replacements(recording, batch, initial, seed)
    values = {writer: replacements.value(writer, kind) for writer in recording.graph.writers}
    most = int(asked.sum(1).max())
    counted, queries = asked, None
    if most <= counted.shape[1] // 2:
        chosen, queries = counted.int().topk(most, dim=1)
        counted = chosen.bool()
    return _Bench(recording, batch, queries, counted, values)


def _effects(bench: _Bench, ranking: str, points: int) -> np.ndarray:
    """How much M falls without each edge, exactly or to first order."""
    edges = bench.graph.edges
    if ranking == "exact":
        M, _ = bench.measure([[], *(bench.without([edge]) for edge in edges)])
        return M[0] - M[1:]
    alphas = [0.0] if ranking == "gradient" else [(i + 0.5) / points for i in range(points)]
    slopes = []
    for alpha in track(alphas, "gradients"):
        slopes.append(
            edge_slopes(
                bench.recording, bench.replacement, alpha, lambda logits: bench.performance(logits)[0], bench.queries
            )
        )
    return -torch.stack(slopes).mean(0).cpu().numpy()


def _curve(
    bench: _Bench, orders: Sequence[tuple[str, list[str]]], sizes: Iterable[int], ends: tuple[float, float]
) -> pd.DataFrame:
    whole, nothing = ends
    cells = [(name, n, order) for name, order in orders for n in sizes]
    removed = [frozenset(edges) for _, n, order in cells for edges in (order[n:], order[:n])]
    # Neighbours differ by one edge, so they often share the run up to the last layer's attention.
    neighbours = [*removed[::2], *removed[1::2]]
    place = {edges: i for i, edges in enumerate(dict.fromkeys(neighbours))}  # different orders share many circuits
    every = [bench.without(edge for edge in bench.graph.edges if edge in s) for s in place]
    done: list[int] = []
    M, accuracies = bench.measure(every, done)
    which = np.array([place[edges] for edges in removed]).reshape(-1, 2)
    kept, lost, accuracy = M[which[:, 0]], M[which[:, 1]], accuracies[which[:, 0]]
    table = pd.DataFrame([cell[:2] for cell in cells], columns=["ranking", "n"])
    table["faithfulness"] = (kept - nothing) / (whole - nothing)
    table["completeness"] = (whole - lost) / (whole - nothing)
    table["accuracy"] = accuracy
    scored = table.loc[np.isin(which, done).all(1)]
    return pd.DataFrame(scored.groupby(["ranking", "n"], sort=False, as_index=False).mean())
