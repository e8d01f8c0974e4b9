"""Attribution patching: all edges at once by gradients, checked against the exact values.

Let a_e in [0, 1] say how much of the other run edge e carries, and M(a) the mean logit of the answer (effects.py). The
exact effect of an edge is (M(0) - M(1_e)) / (M_from - M_to). There are two approximations, with one backward pass per
point:

    gradient      -dM/da_e at a = 0, over (M_from - M_to): the activation's difference times the gradient
    integrated    the same derivative averaged over a = alpha 1 for alpha from 0 to 1 (midpoints)

Integrated gradients are complete: they sum over all edges to the effect of patching everything, 1.

Where targets are soft, M is minus a KL from the run at a = 0 (effects.py). It is largest there, so its derivative at
a = 0 is zero for every edge and says nothing: `gradient` is left out.
"""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.interventions.effects import Contrast, at_query, measured
from induction_memory.interventions.path_patching import patch_paths
from induction_memory.runner.components import ARROW
from induction_memory.runner.variants import Patch


def attribute(contrast: Contrast, *, points: int = 16) -> pd.DataFrame:
    """One row per edge: the exact effect, by gradient, and by integrated gradients at `points` points.

    For soft targets there is no column `gradient`: the derivative of a KL is zero at the run that it is measured from.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> pairs = im.task.corrupt(run.task.sample(4, im.step_rng(0, 0)), "trigger", im.step_rng(0, 1))
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
    """Correlation of each approximation in the table with the exact effects: linear, and of the ranks.

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
    edges = contrast.start.graph.edges
    amounts = torch.full((len(edges),), alpha, device=contrast.start.tokens.device, requires_grad=True)
    patches = [Patch(edge, contrast.end.at(edge.split(ARROW)[0]), amount=amounts[i]) for i, edge in enumerate(edges)]
    answer = contrast.pairs.answer
    start, end = (at_query(run, contrast) for run in (contrast.start, contrast.end))
    with torch.enable_grad():
        M = measured(contrast.start.patched_logits([patches], queries=contrast.queries), start, answer).mean()
        (slope,) = torch.autograd.grad(M, amounts)
    M_from, M_to = (measured(logits, start, answer).mean() for logits in (start, end))
    return -slope / (M_from - M_to)
