"""Mediation: how much of a head's effect passes through which input of which later head.

With v the value of a run (games.py) and y_h replaced as in an ablation,

    total       v(intact) - v(head ablated for all its readers)
    direct      v(intact) - v(ablated where the output and the last feed-forward read it)
    indirect    v(intact) - v(ablated where one later head's queries, keys or values read it): path patching
    rest        total - direct - all indirect: through earlier feed-forwards, and interactions between the paths

each with a standard error over sequences. Pairs of redundant heads have additional rows, ablated together, because
neither has an effect when ablated alone.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from induction_memory.heads.games import ValueFunction, edges
from induction_memory.heads.sharing import CLEARLY, LEAST
from induction_memory.runner.components import ARROW, layer_of
from induction_memory.runner.recording import Patch

COLUMNS = ("source", "path", "target", "input", "effect", "effect_se", "part")

Path = tuple[str, str, str]
"""Columns path, target and input."""


def mediation(v: ValueFunction, together: Sequence[tuple[str, ...]] = ()) -> pd.DataFrame:
    """One row per source and path: effect, effect_se, and part (of the source's total effect; nan if that is not
    clear).

    Paths through edges that the model does not allow (`runner/checked.py`) are left out, and count in the rest.
    The sources are every head, then the sets in `together`. Columns `target` (a head or ""), `input` (q, k, v or "").
    """
    graph = v.recording.graph
    sources = [*[(head,) for head in graph.heads], *together]
    present = torch.ones(len(sources) + 2, len(graph.heads), dtype=torch.bool)  # all heads, without each source, none
    present[-1] = False
    for row, source in enumerate(sources, start=1):
        for head in source:
            present[row, graph.heads.index(head)] = False
    intact, *cut_for_all, empty = v.coalitions(present)
    least = LEAST * abs(float(v.questions.mean(intact - empty)[0]))
    planned, variants = [], []
    for source in sources:
        direct = [edge for head in source for edge in edges(graph, head, "out")]
        paths: dict[Path, list[str]] = {("direct", "", ""): direct}
        for target in graph.heads:
            if layer_of(target) > max(map(layer_of, source)):
                for letter in "qkv":
                    paths["indirect", target, letter] = [f"{head}{ARROW}{target}.{letter}" for head in source]
        paths = {cell: found for cell, found in paths.items() if all(map(graph.allows, found))}
        planned.append(paths)
        for edges_of_path in paths.values():
            variants.append([Patch(edge, v.absent[edge.split(ARROW)[0]]) for edge in edges_of_path])
    sums, rows = v.patched(variants).split([len(paths) for paths in planned]), []
    for source, cut, paths, patched in zip(sources, cut_for_all, planned, sums, strict=True):
        total, parts = intact - cut, intact - patched
        mean, error = v.questions.mean(torch.cat([total[None], parts, (total - parts.sum(0))[None]]))
        total_size = abs(float(mean[0]))
        clear = total_size > least and total_size > CLEARLY * float(error[0])
        cells = [("total", "", ""), *paths, ("rest", "", "")]
        for cell, effect, effect_se in zip(cells, mean.tolist(), error.tolist(), strict=True):
            rows.append(("+".join(source), *cell, effect, effect_se, effect / float(mean[0]) if clear else np.nan))
    return pd.DataFrame(rows, columns=list(COLUMNS))
