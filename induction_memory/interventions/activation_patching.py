"""Activation patching: replace one activation by that of another run, per component and per position.

The two runs differ in one thing (corruptions.py). If a patch accounts for the difference (effects.py), information
about that thing passes through the patched place. Positions can be chosen by role, wherever they stand in the sequence:

    query        the position that is asked
    elsewhere    all positions without a role
    trigger      for in-context bigrams: the first occurrence of the query's trigger
    output       for in-context bigrams: the token after it

or each by its number, counted from 1, or all together. `stream2` is the whole stream that layer 2 reads.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from induction_memory.errors import require
from induction_memory.interventions.ablations import INTACT
from induction_memory.interventions.effects import Contrast, Direction, contrast, effects
from induction_memory.interventions.path_patching import patch_paths
from induction_memory.progress import keeping
from induction_memory.runner.component_groups import component_names
from induction_memory.runner.components import ARROW
from induction_memory.runner.recording import Via
from induction_memory.runner.variants import Patch
from induction_memory.subject import SEQUENCES, Sequences, Steps, subject
from induction_memory.task.corruptions import Query, pairs_of
from induction_memory.task.fields import require_integer, require_seed
from induction_memory.task.pairs import Pairs
from induction_memory.task.protocol import Task

Positions = Literal["roles", "each", "all"] | Sequence[int]
PatchKind = Literal["activation", "path"]


def patch(
    source: Any,
    batch: Sequences = None,
    *,
    kind: PatchKind = "activation",
    corruption: str | None = None,
    direction: Direction = "corrupt",
    query: Query = "second",
    components: str | Sequence[str] | None = None,
    positions: Positions = "roles",
    step: Steps = None,
    task: Task | None = None,
    via: Via | None = None,
    seed: int = 0,
    intact: bool = False,
) -> pd.DataFrame:
    """Activation patching (one row per component and position) or path patching (one row per edge), for each step.

    `components` are names of sites, groups of them as in `ablate`, or for paths the edges; all when not given.
    `corruption` is one that the task offers, its first when not given: `trigger` for in-context bigrams. Source, batch,
    step and `via` are those of `ablate`.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(4, im.step_rng(0, 0))
    >>> edges = im.patch("induction-small", batch, kind="path")
    >>> edges.sort_values("effect", ascending=False).head(3)[["source", "target", "effect"]].round(2)
       source  target  effect
    4   embed  L1H1.v     1.0
    18   L2H1     out     1.0
    11   L1H1  L2H1.k     1.0
    """
    require(kind in get_args(PatchKind), "kind", "activation or path", repr(kind))
    chosen = subject(source, step=step, batch=batch, task=task, sequences=SEQUENCES, via=via)
    require_seed(seed)
    pairs = pairs_of(chosen.known_task, chosen.batch, corruption, np.random.default_rng(seed), query)
    tables = []
    with keeping(tables, "steps"):
        for one, runner in chosen.each():
            runs = contrast(runner, pairs, direction)
            if kind == "path":
                edges = None if components is None else component_names(runs.start.graph, None, components)
                table = patch_paths(runs, edges)
            else:
                table = patch_activations(runs, components, positions)
            if intact:
                names = ["source", "target"] if kind == "path" else ["component", "position"]
                table = pd.concat(
                    [pd.DataFrame([(INTACT, INTACT)], columns=names).join(effects(runs, [[]])), table],
                    ignore_index=True,
                )
            tables.append(chosen.labelled(table, one))
    return pd.concat(tables, ignore_index=True)


def patch_activations(
    runs: Contrast, components: str | Sequence[str] | None = None, positions: Positions = "roles"
) -> pd.DataFrame:
    """One row per component and position: accuracy, logit and effect of its activation from the other run."""
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
    """Name or number of a position -> where it is in each sequence; None means everywhere."""
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
