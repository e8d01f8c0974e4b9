"""Exact path patching: what passes from one component to one input of a later one, and nothing else.

The edge `source->input` of the patched run carries what the source wrote in the other run. Every other edge carries the
run's own activation, and all that depends on that input is recomputed. Edges in series on one path each carry its whole
effect: under a corruption of the earlier trigger, the effect of `L1H1->L2H1.k` arrives by `embed->L1H1.v` and leaves by
`L2H1->out`. To find out which path reaches a component, look at the edges into it.
"""

from collections.abc import Sequence

import pandas as pd

from induction_memory.errors import require
from induction_memory.interventions.effects import Contrast, effects
from induction_memory.runner.components import ARROW
from induction_memory.runner.variants import Patch


def patch_paths(contrast: Contrast, edges: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per edge: source, target, accuracy, logit, effect. All edges of the model when none are named.

    A name may stand for several edges (`L1->L2.k`, `L1H1->L2H1`), which are then patched together.
    """
    graph = contrast.start.graph
    names = graph.edges if edges is None else tuple(edges)
    for name in names:
        require(ARROW in name, "edges", f"names like {graph.edges[0]}", repr(name))
    variants = [[Patch(edge, contrast.end.at(edge.split(ARROW)[0])) for edge in graph.resolve(name)] for name in names]
    table = pd.DataFrame([name.split(ARROW) for name in names], columns=["source", "target"])
    return table.join(effects(contrast, variants))
