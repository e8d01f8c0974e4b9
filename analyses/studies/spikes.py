"""Spikes: gradient descent with large steps on one associative memory, alone and inside the transformer.

    python analyses/studies/spikes.py --runs runs/spikes --docs docs/studies                        # five minutes
    python analyses/studies/spikes.py --scale full --runs runs/spikes --out runs/spikes-results     # two hours

Writes `spikes.csv`, one row per memory, step size and seed. In a spike the loss is above 1.5 times its lowest value.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from over_seeds import over_seeds

import induction_memory as im
from induction_memory.errors import run_script

N, STEP_SIZES = 65, (5, 20, 50, 100, 200)
RESULTS = Path(__file__).parent / "results"


def spikes(losses: Float[np.ndarray, " step"]) -> dict[str, float]:
    high = losses > 1.5 * np.minimum.accumulate(losses)
    count = int((high[1:] & ~high[:-1]).sum())
    return {"spikes": count, "spike_steps": int(high.sum()), "loss": losses[-20:].mean()}


def alone(frequencies: str, d: int, step_size: float, seed: int, steps: int = 1000) -> dict[str, float]:
    """Full-batch descent on the cross-entropy of the identity; d = 65 has orthonormal embeddings."""
    generator = torch.Generator().manual_seed(seed)
    e, u = ((torch.eye(N) if d == N else torch.randn(N, d, generator=generator) / d**0.5) for _ in "eu")
    text = torch.from_numpy(im.BigramTask().unigram.copy()).float()
    p = text if frequencies == "text" else torch.full((N,), 1 / N)
    W, losses = torch.zeros(d, d), []
    for _ in range(steps):
        log_q = im.memory.matching(W, e, u).table.log_softmax(-1)
        losses.append(float(-(p * log_q.diagonal()).sum()))
        W = W + step_size * u.mT @ (p[:, None] * (torch.eye(N) - log_q.exp())).mT @ e
    return spikes(np.array(losses)) | {"recall": float(im.memory.recall(im.memory.matching(W, e, u)))}


def inside(step_size: float, seed: int, runs: Path, full: bool) -> dict[str, float]:
    """The preset figure-8-d64, in which W_O2 alone learns, without momentum."""
    config = im.experiment.preset("figure-8-d64").config
    changed = {"steps": 200, "learning_rate": step_size, "momentum": 0.0, "checkpoints": "every 50", "threads": 1}
    train = config.train.with_seed(seed).replace(**changed | ({} if full else {"batch_size": 64}))
    task = config.task if full else im.BigramTask(k=config.task.k, length=64)
    model = im.ModelConfig(d_model=64, n_ctx=task.length, feed_forward="none", trained=("W_O2",))
    where = runs / f"{step_size}-{seed}"
    run = im.train(task, model, out=where, resume="or start", progress=False, **asdict(train))
    last = float(im.probes.recall(run, step="last")["W_O2"].iloc[0])
    return spikes(run.metrics["loss"].to_numpy()) | {"recall": last}


def figure(table: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(9, 3.4), layout="constrained")
    panels = drawn.subplots(1, 3)
    for axes, value in zip(panels, ("spikes", "loss", "recall"), strict=True):
        for memory, own in over_seeds(table, ["memory", "step_size"], value).groupby("memory", sort=False):
            bars = own["high"] - own["mean"]
            axes.errorbar(own["step_size"], own["mean"], yerr=bars, marker="o", ms=3, capsize=2, label=memory)
        axes.set(xscale="log", xlabel="step size", title=value, yscale="linear" if value == "recall" else "symlog")
        axes.set_xticks(STEP_SIZES, [str(size) for size in STEP_SIZES])
        axes.set_xticks([], minor=True)
        axes.set_ylim(0)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return drawn


def main(
    runs: Path, scale: Literal["reduced", "full"] = "reduced", out: Path = RESULTS, docs: Path | None = None
) -> None:
    """Train what `runs` does not hold yet, write spikes.csv to `out`, and with `docs` draw spikes.png there."""
    torch.set_num_threads(1)
    rows, full = [], scale == "full"
    for size in STEP_SIZES:
        for seed in range(10):
            for name, d in ((name, d) for name in ("text", "equal") for d in (16, 64, 65)):
                rows.append(
                    {"memory": f"{name}, d = {d}", "step_size": size, "seed": seed} | alone(name, d, size, seed)
                )
        for seed in range(5 if full else 3):
            rows.append(
                {"memory": "in the transformer", "step_size": size, "seed": seed} | inside(size, seed, runs, full)
            )
    table = pd.DataFrame(rows)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "spikes.csv", index=False, float_format="%.6g")
    if docs is not None:
        figure(table).savefig(docs / "spikes.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
