"""Mediation: how much of a head's effect passes through which input of which later head.

With v the worth of a run (questions.py) and y_h replaced as in an ablation,

    total       v(intact) - v(head cut for all its readers)
    direct      v(intact) - v(cut where the output and the last feed-forward read it)
    indirect    v(intact) - v(cut where one later head's queries, keys or values read it): path patching, an edge
    rest        total - direct - all indirect: what passes by earlier feed-forwards, and what the paths do together

each with a standard error over sequences. Pairs of redundant heads are cut together in rows of their own, for cut
singly they have no effect to mediate.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from induction_memory.heads.games import Stage, edges
from induction_memory.heads.sharing import CLEARLY, LEAST
from induction_memory.runner.components import layer_of
from induction_memory.runner.variants import Patch

Path = tuple[str, str, str, str]


def mediation(stage: Stage, together: Sequence[tuple[str, ...]] = ()) -> pd.DataFrame:
    """One row a source and path: effect, effect_se, part (of the source's total effect, if that is clearly not zero).

    Sources: every head, then the sets in `together`. Columns `target` (a head or ""), `input` (q, k, v or "").
    """
    sources = [(head,) for head in stage.graph.heads] + [tuple(group) for group in together]
    everybody = stage.graph.heads
    present = torch.tensor([[head not in source for head in everybody] for source in [(), *sources, everybody]])
    intact, *cut_for_all, nobody = stage.coalitions(present)
    least = LEAST * abs(float(stage.questions.mean(intact - nobody)[0]))
    planned = [_paths(stage, source) for source in sources]
    sums = iter(stage.patched([[], *(variant for paths in planned for _, variant in paths)]))
    unpatched = next(sums)
    rows = []
    for source, cut, paths in zip(sources, cut_for_all, planned, strict=True):
        total, parts = intact - cut, torch.stack([unpatched - next(sums) for _ in paths])
        mean, error = stage.questions.mean(torch.cat([total[None], parts, (total - parts.sum(0))[None]]))
        clear, name = abs(float(mean[0])) > max(least, CLEARLY * float(error[0])), "+".join(source)
        cells = [(name, "total", "", ""), *(path for path, _ in paths), (name, "rest", "", "")]
        for cell, effect, effect_se in zip(cells, mean.tolist(), error.tolist(), strict=True):
            rows.append((*cell, effect, effect_se, effect / float(mean[0]) if clear else np.nan))
    return pd.DataFrame(rows, columns=["source", "path", "target", "input", "effect", "effect_se", "part"])


def _paths(stage: Stage, source: tuple[str, ...]) -> list[tuple[Path, list[Patch]]]:
    """The direct path and each edge into a later head, with the patches that cut it."""
    name, graph = "+".join(source), stage.graph
    paths: list[tuple[Path, list[Patch]]] = []
    straight = [edge for head in source for edge in edges(graph, head, "out")]
    paths.append(((name, "direct", "", ""), _cut(stage, straight)))
    for target in graph.heads:
        if layer_of(target) > max(map(layer_of, source)):
            for letter in "qkv":
                cut = _cut(stage, [f"{head}->{target}.{letter}" for head in source])
                paths.append(((name, "indirect", target, letter), cut))
    return paths


def _cut(stage: Stage, sites: Sequence[str]) -> list[Patch]:
    return [Patch(site, stage.absent[site.split("->")[0]]) for site in sites]
