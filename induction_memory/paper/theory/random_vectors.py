"""Appendix A: norms, near-orthogonality and remapping of random vectors; capacity of the outer-product memory."""

import math
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import kstest
from torch import Tensor

from induction_memory.memory.association import matching, store
from induction_memory.memory.random_embeddings import gaussian_embeddings
from induction_memory.memory.recall import recall, signal_to_interference
from induction_memory.paper.theory.checks import Result, column, slope
from induction_memory.paper.verdicts import at_least, at_most, known_slip, near, within

DRAWS = {16: 20_000, 32: 20_000, 64: 8_000, 128: 2_000}
"""Number of draws at each dimension, for the variances."""
STORED = {16: (4, 8, 16, 32, 64), 32: (16, 32, 64, 128, 256), 64: (64, 128, 256, 512, 1024), 128: (512, 1024, 2048)}
"""Numbers of pairs at each dimension, around the crossover."""


def printed_variance(d: int) -> float:
    """Appendix A's E(x^T W x)^2 = (d M_4 M_2 + d (d - 1) / 2 M_2^3) / d^3, with M_2 = 1 and M_4 = 3."""
    return (3 * d + d * (d - 1) / 2) / d**3


def remapped_variance(d: int) -> float:
    """E(x^T W x)^2 with all d (d - 1) ordered pairs i != j counted: (d + 2) / d^2."""
    return (3 * d + d * (d - 1)) / d**3


def random_vectors() -> Result:
    r"""Appendix A: random vectors in many dimensions are nearly orthonormal, and a random matrix nearly keeps norms.
    For $u_i \sim \mathcal N(0, I/d)$ and $W$ with entries $\mathcal N(0, 1/d)$, the square $u_i^\top u_i$ has mean 1
    and variance $2/d$, and $\sqrt d \, u_i^\top u_j \to \mathcal N(0, 1)$. The ratio $\|Wx\|^2 / \|x\|^2$ has mean 1
    and variance $2/d$, and $E(x^\top W x)^2 = (d + 2)/d^2$. The paper prints $\frac{1}{d^3}(d M_4 M_2 +
    \frac{d(d-1)}{2} M_2^3)$ for the last: the sum over $i \neq j$ has $d(d-1)$ terms, not half of them. The order
    $O(1/d)$ stands, but the constant is off by almost a factor two."""
    generator = torch.Generator().manual_seed(6)
    records = []
    for d, draws in DRAWS.items():
        x, y = (gaussian_embeddings(draws, d, generator) for _ in range(2))
        remapped = torch.cat([_remap(part, generator) for part in x.split(500)])
        ratio = remapped.square().sum(-1) / x.square().sum(-1)
        overlap, through = ((x * other).sum(-1).square().mean().item() for other in (y, remapped))
        norm = x.square().sum(-1).var().item()
        predicted = (remapped_variance(d), printed_variance(d))
        far = ((x * remapped).sum(-1).abs() > 4 / d**0.5).double().mean().item()
        records.append((d, norm, overlap, ratio.var().item(), through, *predicted, far))
    measures = ["norm variance", "overlap variance", "remapped norm variance", "x^T W x variance"]
    table = pd.DataFrame(records, columns=["d", *measures, "predicted x^T W x", "printed x^T W x", "far"])
    scaled = {str(name): float((column(table, str(name)) * column(table, "d")).mean()) for name in table}
    through = scaled["x^T W x variance"]
    x, y = (gaussian_embeddings(20_000, 128, generator) for _ in range(2))
    law: Any = kstest(((x * y).sum(-1) * 128**0.5).numpy(), "norm")
    rows = (
        within("d Var(u_i^T u_i), mean over d", 2.0, scaled["norm variance"], 0.05),
        within("d E(u_i^T u_j)^2, mean over d", 1.0, scaled["overlap variance"], 0.05),
        within("d Var(|W x|^2 / |x|^2), mean over d", 2.0, scaled["remapped norm variance"], 0.05),
        known_slip(within("d E(x^T W x)^2 as printed, mean over d", scaled["printed x^T W x"], through, 0.05)),
        within("d E(x^T W x)^2 with all pairs, mean over d", scaled["predicted x^T W x"], through, 0.05),
        at_most("sqrt(d) u_i^T u_j against N(0, 1), d = 128: largest distance of the laws", 0.03, float(law.statistic)),
        at_most("share with |x^T W x| > 4/sqrt(d), largest over d", 0.1, float(column(table, "far").max())),
    )
    return Result(rows, {"variances": table})


def predicted_recall(n: int, d: int) -> float:
    """Recall of n pairs of random vectors in d dimensions, from Gaussian scores.

    A rival's score v_j^T W u_i is a sum of two overlaps with i or j, of variance 1/d each, and of n - 2 products of two
    overlaps, of variance 1/d^2 each. The target's score is 1 with variance 4/d + (n - 1)/d^2. All rivals of an input
    must lose: P = E[ Phi(s / sigma)^(n - 1) ]."""
    sigma = math.sqrt(2 / d + (n - 2) / d**2)
    spread = math.sqrt(4 / d + (n - 1) / d**2)
    grid = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    density = torch.exp(-(grid**2) / 2)
    wins = torch.special.log_ndtr((1 + spread * grid) / sigma) * (n - 1)
    return ((density * wins.exp()).sum() / density.sum()).item()


def capacity() -> Result:
    r"""Appendix A: $W = \sum_{i \le n} v_i u_i^\top$ stores $n$ pairs of random vectors. How many can it hold? Its
    recall is measured against $n$ and the dimension. The interference of $n$ pairs is a sum of products of *two*
    overlaps, so it is $\sqrt{n}/d$ and not $\sqrt{n/d}$: the memory holds of the order of $d^2 / (2 \log n)$ pairs, as
    many as it has entries up to the logarithm. The crossover is the $n$ at which recall falls through one half."""
    generator = torch.Generator().manual_seed(7)
    records = []
    for d, counts in STORED.items():
        for n in counts:
            readings = [_read(n, d, generator) for _ in range(max(1, 512 // n))]
            found, signal = (sum(values) / len(values) for values in zip(*readings, strict=True))
            limit = 1 / math.sqrt(2 / d + (n - 2) / d**2)
            records.append((d, n, found, predicted_recall(n, d), signal, limit))
    columns = ["d", "n", "recall", "predicted", "signal", "predicted signal"]
    table = pd.DataFrame(records, columns=columns)
    crossovers = pd.DataFrame(
        [{"d": d, **{kind: _crossover(table, kind, d) for kind in ("recall", "predicted")}} for d in STORED]
    )
    measured, expected, d = (column(crossovers, name) for name in ("recall", "predicted", "d"))
    deviation = float(abs(column(table, "recall") - column(table, "predicted")).mean())
    ratio = float((column(table, "signal") / column(table, "predicted signal")).mean())
    rows = (
        near("recall over all (n, d): mean deviation from the Gaussian prediction", 0.0, deviation, 0.05),
        within("signal over interference against 1/sqrt(2/d + (n-2)/d^2), mean ratio", 1.0, ratio, 0.05),
        within(f"crossover (recall 1/2) at d = {d[-1]:.0f}", expected[-1], measured[-1], 0.1),
        near("growth of the crossover with d: log-log slope", slope(d, expected), slope(d, measured), 0.1),
        at_least("pairs held at the largest d, in units of d", 5.0, measured[-1] / d[-1]),
    )
    return Result(rows, {"capacity": table, "crossover": crossovers})


def _read(n: int, d: int, generator: torch.Generator) -> tuple[float, float]:
    """Recall and signal-to-interference of one memory of n random pairs."""
    u, v = gaussian_embeddings(n, d, generator), gaussian_embeddings(n, d, generator)
    stored = matching(store(u, v), u, v)
    return recall(stored).item(), signal_to_interference(stored).item()


def _remap(x: Float[Tensor, "batch d"], generator: torch.Generator) -> Float[Tensor, "batch d"]:
    """W x with a fresh W for every row."""
    batch, d = x.shape
    W = torch.randn(batch, d, d, generator=generator, dtype=torch.float32) / d**0.5
    return (W @ x.float().unsqueeze(-1)).squeeze(-1).double()


def _crossover(table: pd.DataFrame, kind: str, d: int) -> float:
    """The n at which a falling recall passes one half, interpolated linearly in log n."""
    points = list(zip(column(table, "n", d=d), column(table, kind, d=d), strict=True))
    for (n, a), (m, b) in pairwise(points):
        if a >= 0.5 > b:
            return float(n * (m / n) ** ((a - 0.5) / (a - b)))
    return math.nan
