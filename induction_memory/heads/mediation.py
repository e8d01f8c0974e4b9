"""Mediation: how much of a head's effect passes through which input of which later head.

With v the value of a run (questions.py) and y_h replaced as in an ablation,

    total       v(intact) - v(head cut for all its readers)
    direct      v(intact) - v(cut where the output and the last feed-forward read it)
    indirect    v(intact) - v(cut where one later head's queries, keys or values read it): path patching, an edge
    rest        total - direct - all indirect: through earlier feed-forwards, and interactions between the paths

each with a standard error over sequences. Two redundant heads are also cut together, in rows of their own, because
neither has an effect when cut alone.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from induction_memory.heads.games import ValueFunction
from induction_memory.heads.routes import edges
from induction_memory.heads.sharing import CLEARLY, LEAST
from induction_memory.runner.components import layer_of
from induction_memory.runner.recording import Patch

COLUMNS = ("source", "path", "target", "input", "effect", "effect_se", "part")

Path = tuple[str, str, str, str]


def mediation(v: ValueFunction, together: Sequence[tuple[str, ...]] = ()) -> pd.DataFrame:
    """One row per source and path: effect, effect_se, and part, the share of the source's total effect if it is clear.

    Sources: every head, then the sets in `together`. Columns `target` (a head or ""), `input` (q, k, v or "").
    """
    sources = [(head,) for head in v.graph.heads] + [tuple(group) for group in together]
    all_heads = v.graph.heads
    present = torch.tensor([[head not in source for head in all_heads] for source in [(), *sources, all_heads]])
    intact, *cut_for_all, empty = v.coalitions(present)
    least = LEAST * abs(float(v.questions.mean(intact - empty)[0]))
    planned = [_paths(v, source) for source in sources]
    sums = iter(v.patched([variant for paths in planned for _, variant in paths]))
    rows = []
    for source, cut, paths in zip(sources, cut_for_all, planned, strict=True):
        total, parts = intact - cut, torch.stack([intact - next(sums) for _ in paths])
        mean, error = v.questions.mean(torch.cat([total[None], parts, (total - parts.sum(0))[None]]))
        total_size, name = abs(float(mean[0])), "+".join(source)
        clear = total_size > least and total_size > CLEARLY * float(error[0])
        cells = [(name, "total", "", ""), *(path for path, _ in paths), (name, "rest", "", "")]
        for cell, effect, effect_se in zip(cells, mean.tolist(), error.tolist(), strict=True):
            rows.append((*cell, effect, effect_se, effect / float(mean[0]) if clear else np.nan))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _paths(v: ValueFunction, source: tuple[str, ...]) -> list[tuple[Path, list[Patch]]]:
    """The direct path and each edge into a later head, with the patches that cut it."""
    name, graph = "+".join(source), v.graph
    paths: list[tuple[Path, list[Patch]]] = []
    straight = [edge for head in source for edge in edges(graph, head, "out")]
    paths.append(((name, "direct", "", ""), _cut(v, straight)))
    for target in graph.heads:
        if layer_of(target) > max(map(layer_of, source)):
            for letter in "qkv":
                cut = _cut(v, [f"{head}->{target}.{letter}" for head in source])
                paths.append(((name, "indirect", target, letter), cut))
    return paths


def _cut(v: ValueFunction, sites: Sequence[str]) -> list[Patch]:
    return [Patch(site, v.absent[site.split("->")[0]]) for site in sites]
