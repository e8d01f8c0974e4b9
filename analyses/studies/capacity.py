"""Capacity: how the error of an outer-product memory falls with its dimension and with its data.

    python analyses/studies/capacity.py --docs docs/studies                 # one minute
    python analyses/studies/capacity.py --scale full --out runs/capacity    # five minutes

Writes `capacity-errors.csv`, one row per seed and size, `capacity-exponents.csv`, and with --docs the figure.
"""

from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from over_seeds import over_seeds, slopes
from torch import Tensor

import induction_memory as im
from induction_memory.errors import run_script

N, CLASSES = 1000, 5
SAMPLES = (10, 30, 100, 300, 1000, 3000, 10000)
LABELS = {"frequent": "d/8 most frequent, equal", "frequency": "all, by frequency", "all": "all, equal", "samples": ""}
RESULTS = Path(__file__).parent / "results"


def error(q: Float[Tensor, " i"], d: int | None, generator: torch.Generator, p: Float[Tensor, " i"]) -> float:
    """Probability of an input that W = sum q(x) u_y e_x^T does not recall; d None for orthonormal embeddings."""
    targets = torch.arange(N) % CLASSES
    e = torch.eye(N) if d is None else torch.randn(N, d, generator=generator)
    u = torch.eye(CLASSES) if d is None else torch.randn(CLASSES, d, generator=generator)
    e, u = e / e.norm(dim=1, keepdim=True), u / u.norm(dim=1, keepdim=True)
    W = im.memory.store(q[:, None] * e, u[targets])
    return float(p[~im.memory.hits(im.memory.matching(W, e, u, targets))].sum())


def errors(seeds: int, dimensions: list[int]) -> pd.DataFrame:
    p = torch.arange(1, N + 1).double().pow(-2).float()
    p, rows = p / p.sum(), []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        for d in dimensions:
            schemes = {"frequent": (torch.arange(N) < d // 8).float(), "frequency": p, "all": torch.ones(N)}
            rows += [(name, seed, d, error(q, d, generator, p)) for name, q in schemes.items()]
        for samples in SAMPLES:
            counts = torch.bincount(torch.multinomial(p, samples, True, generator=generator), minlength=N)
            rows.append(("samples", seed, samples, error(counts / samples, None, generator, p)))
    return pd.DataFrame(rows, columns=["scheme", "seed", "size", "error"])


def figure(found: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = drawn.subplots(1, 2, sharey=True)
    for scheme, own in over_seeds(found, ["scheme", "size"], "error").groupby("scheme", sort=False):
        axes = right if scheme == "samples" else left
        bars = own["high"] - own["mean"]
        axes.errorbar(own["size"], own["mean"], yerr=bars, marker="o", ms=3, capsize=2, label=LABELS[str(scheme)])
    left.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="probability of an error")
    left.set_xticks(sorted(found.loc[found["scheme"] == "all", "size"].unique()), minor=False)
    left.set_xticks([], minor=True)
    left.xaxis.set_major_formatter("{x:g}")
    left.legend(frameon=False, fontsize="small", title="stored inputs", title_fontsize="small")
    right.set(xscale="log", xlabel="samples T (orthonormal embeddings)")
    return drawn


def main(scale: Literal["reduced", "full"] = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Measure, write the tables to `out`, and with `docs` draw capacity.png there."""
    torch.set_num_threads(1)
    found = errors(10, [2**n for n in range(4, 10)]) if scale == "reduced" else errors(30, [2**n for n in range(4, 12)])
    exponents = over_seeds(slopes(found, ["scheme", "seed"], "size", "error"), ["scheme"])
    out.mkdir(parents=True, exist_ok=True)
    found.to_csv(out / "capacity-errors.csv", index=False, float_format="%.6g")
    exponents.to_csv(out / "capacity-exponents.csv", index=False, float_format="%.6g")
    if docs is not None:
        figure(found).savefig(docs / "capacity.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
