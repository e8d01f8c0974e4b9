"""Activation patching: replace an activation by its value in another run, per component and position.

The two runs differ in one thing (`task/corruptions.py`). If a patch has a large effect (`scores.py`), the patched site
carries that information. Positions are chosen by role, which each sequence has at its own place,

    query        the position of the prediction
    elsewhere    all positions without a role
    trigger      for in-context bigrams: the first occurrence of the query's trigger
    output       for in-context bigrams: the token after it

or by number, counted from 1, or all together. `stream2` is the whole stream that layer 2 reads.

Attribution patching: all edges at once by gradients, checked against the exact values.

Let a_e in [0, 1] interpolate edge e between its run (0) and the other run (1), and let M(a) be the mean logit of the
answer (`scores.py`). The exact effect of an edge is (M(0) - M(1_e)) / (M_from - M_to). There are two approximations,
with one backward pass per point:

    gradient      -dM/da_e at a = 0, over (M_from - M_to): the activation's difference times the gradient
    integrated    the same derivative averaged over a = alpha 1 for alpha from 0 to 1 (midpoints)

Integrated gradients are complete: their sum over all edges is 1, the effect of patching everything.

For soft targets, M is minus a KL from the run at a = 0 (`scores.py`). There it is largest, so its derivative is zero
for every edge: `gradient` is left out.

Path patching: the exact effect of one edge, from a component to one input of a later component.

The patched edge `source->input` carries the source's activation of the other run. Every other edge is unpatched, and
everything that depends on the input is recomputed. Edges in series on one path each have its whole effect: if the
earlier trigger is corrupted, the effect of `L1H1->L2H1.k` arrives by `embed->L1H1.v` and leaves by `L2H1->out`. To find
which path reaches a component, look at the edges into it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.errors import require, require_known
from induction_memory.fields import require_integer, require_seed
from induction_memory.interventions.ablations import INTACT
from induction_memory.interventions.scores import (
    Contrast,
    Direction,
    at_query,
    contrast,
    edge_slopes,
    effects,
    measured,
)
from induction_memory.runner.components import ARROW, component_names
from induction_memory.runner.recording import Patch, Via
from induction_memory.source.elsewhere import Engine
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import SEQUENCES, At, Sequences, select
from induction_memory.task.corruptions import Pairs, Query, pairs_of
from induction_memory.task.protocol import Task
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps


def patch_paths(contrast: Contrast, edges: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per edge: source, target, accuracy, logit, effect. By default all edges of the model.

    A name can mean several edges (`L1->L2.k`, `L1H1->L2H1`), which are then patched together.
    """
    graph = contrast.start.graph
    names = graph.edges if edges is None else tuple(edges)
    for name in names:
        require(ARROW in name, "edges", f"names like {graph.edges[0]}", repr(name))
    variants = [[Patch(edge, contrast.end.at(edge.split(ARROW)[0])) for edge in graph.resolve(name)] for name in names]
    table = pd.DataFrame([name.split(ARROW) for name in names], columns=["source", "target"])
    return table.join(effects(contrast, variants))


Positions = Literal["roles", "each", "all"] | Sequence[int]
PatchKind = Literal["activation", "path"]


def patch(
    source: Any,
    batch: "Sequences" = None,
    *,
    kind: PatchKind = "activation",
    corruption: str | None = None,
    direction: Direction = "corrupt",
    query: Query = "second",
    components: str | Sequence[str] | None = None,
    positions: Positions = "roles",
    step: "Steps" = None,
    task: Task | None = None,
    via: Via | None = None,
    seed: int = 0,
    intact: bool = False,
    sequences: int = SEQUENCES,
    progress: "Progress" = None,
    engine: Engine | None = None,
) -> pd.DataFrame:
    """Activation patching (one row per component and position) or path patching (one row per edge), for each step.

    `components` are names of sites, groups of them as in `ablate`, or for paths the edges; by default all. `corruption`
    is one of the task's, by default the first: `trigger` for in-context bigrams. `source`, `batch`, `step`, `via`,
    `progress` and `engine` are as in `ablate`.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(4, im.task.step_rng(0, 0))
    >>> edges = im.patch("induction-small", batch, kind="path")
    >>> edges.sort_values("effect", ascending=False).head(3)[["source", "target", "effect"]].round(2)
       source  target  effect
    4   embed  L1H1.v     1.0
    18   L2H1     out     1.0
    11   L1H1  L2H1.k     1.0
    """
    require_known(kind, get_args(PatchKind), "kind")
    require_seed(seed)
    chosen = select(
        source, step=step, batch=batch, task=task, sequences=sequences, via=via, progress=progress, engine=engine
    )
    pairs = pairs_of(chosen.task, chosen.batch, corruption, np.random.default_rng(seed), query)
    settings = {"patch": [kind, direction, components, positions, intact], "pairs": pairs}
    how = {"kind": kind, "direction": direction, "components": components, "positions": positions, "intact": intact}
    return over_steps(chosen, partial(_patch_one, pairs=pairs, **how), settings=settings)["rows"]


def _patch_one(
    at: At,
    *,
    pairs: Pairs,
    kind: PatchKind,
    direction: Direction,
    components: str | Sequence[str] | None,
    positions: Positions,
    intact: bool,
) -> dict[str, pd.DataFrame]:
    """The rows of one step."""
    runs = contrast(at.runner, pairs, direction)
    if kind == "path":
        edges = None if components is None else component_names(runs.start.graph, None, components)
        table, names = patch_paths(runs, edges), ["source", "target"]
    else:
        table, names = patch_activations(runs, components, positions), ["component", "position"]
    if intact:
        first = pd.DataFrame([(INTACT, INTACT)], columns=names).join(effects(runs, [[]]))
        table = pd.concat([first, table], ignore_index=True)
    return {"rows": table}


def patch_activations(
    runs: Contrast, components: str | Sequence[str] | None = None, positions: Positions = "roles"
) -> pd.DataFrame:
    """One row per component and position: accuracy, logit and effect of patching its activation."""
    graph = runs.start.graph
    if components is None:
        streams = [f"stream{layer}" for layer in range(1, graph.n_layers + 1)]
        components = [*streams, *graph.writers, *(name for name in graph.inputs if "." in name)]
    names = component_names(graph, None, components)
    masks = position_masks(runs.pairs, positions)
    cells = [(name, position) for name in names for position in masks]
    variants = [
        [Patch(site, runs.end.at(site.split(ARROW)[0]), masks[position]) for site in graph.resolve(name)]
        for name, position in cells
    ]
    return pd.DataFrame(cells, columns=["component", "position"]).join(effects(runs, variants))


def position_masks(pairs: Pairs, positions: Positions) -> dict[str | int, Bool[Tensor, "batch pos"] | None]:
    """Role or number of a position -> its mask in each sequence; None means everywhere."""
    length = pairs.clean.tokens.shape[1]
    here = torch.arange(length, device=pairs.query.device)
    if positions == "all":
        return {"all": None}
    if positions == "roles":
        roles = {**pairs.roles, "query": pairs.query}
        masks = {role: here == position[:, None] for role, position in roles.items()}
        return {**masks, "elsewhere": ~torch.stack(list(masks.values())).any(0)}
    require(
        positions == "each" or not isinstance(positions, str), "positions", "roles, each, all or numbers", positions
    )
    numbers = range(1, length + 1) if positions == "each" else positions
    several = isinstance(numbers, Sequence) and len(numbers) > 0
    require(several, "positions", "roles, each, all or numbers", repr(positions))
    for number in numbers:
        require_integer(number, "positions", 1, length, "(the sequence)")
    return {number: (here == number - 1).expand(len(pairs.query), -1) for number in numbers}


def attribute(contrast: Contrast, *, points: int = 16) -> pd.DataFrame:
    """One row per edge: the exact effect, by gradient, and by integrated gradients at `points` points.

    For soft targets there is no column `gradient`: there the derivative is zero.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> pairs = im.task.corrupt(run.task.sample(4, im.task.step_rng(0, 0)), "trigger", im.task.step_rng(0, 1))
    >>> both = im.interventions.contrast(run.model(step=600), pairs)
    >>> effects = im.interventions.attribute(both, points=2)
    >>> effects.sort_values("exact", ascending=False).head(3).round(2)
       source  target  exact  gradient  integrated
    4   embed  L1H1.v    1.0      0.07        0.36
    11   L1H1  L2H1.k    1.0      0.06        0.36
    18   L2H1     out    1.0      1.00        0.43
    """
    require(points >= 1, "points", "at least 1", points)
    exact = patch_paths(contrast)
    table = pd.DataFrame({"source": exact["source"], "target": exact["target"], "exact": exact["effect"]})
    if contrast.pairs.answer is not None:
        table["gradient"] = gradient(contrast, 0.0).cpu().numpy()
    alphas = (torch.arange(points) + 0.5) / points
    table["integrated"] = torch.stack([gradient(contrast, alpha.item()) for alpha in alphas]).mean(0).cpu().numpy()
    return table


def agreement(table: pd.DataFrame) -> pd.DataFrame:
    """Correlation of each approximation in the table with the exact effects: Pearson's, and Spearman's of the ranks.

    >>> import pandas as pd
    >>> import induction_memory as im
    >>> effects = pd.DataFrame({"exact": [0.0, 0.5, 1.0], "gradient": [0.1, 0.4, 0.9]})
    >>> im.interventions.agreement(effects).round(2)
         method  correlation  rank_correlation  edges
    0  gradient         0.99               1.0      3
    """
    rows = []
    for method in (name for name in ("gradient", "integrated") if name in table):
        values = table[["exact", method]]
        linear, of_ranks = (np.corrcoef(pair.to_numpy().T)[0, 1] for pair in (values, values.rank()))
        rows.append((method, linear, of_ranks, len(table)))
    return pd.DataFrame(rows, columns=["method", "correlation", "rank_correlation", "edges"])


def gradient(contrast: Contrast, alpha: float) -> Float[Tensor, " edge"]:
    """The effect of each edge by the derivative at a = alpha 1, in the order of the graph's edges."""
    answer, sources = contrast.pairs.answer, contrast.start.graph.writers
    start, end = (at_query(run, contrast) for run in (contrast.start, contrast.end))
    M_from, M_to = (measured(logits, start, answer).mean() for logits in (start, end))
    values = {source: contrast.end.at(source) for source in sources}
    slope = edge_slopes(
        contrast.start, values, alpha, lambda logits: measured(logits, start, answer).mean(), contrast.queries
    )
    return -slope / (M_from - M_to)
