"""Birth laws: how the birth step grows with length, batch, triggers, dimension and step size.

    python analyses/studies/birth_laws.py --runs runs/laws --docs docs/studies                           # an hour
    python analyses/studies/birth_laws.py --scale full --runs runs/laws-full --out runs/laws-results     # days

Trains a sweep (`im.sweep.start`, resumable). Writes `laws.csv`, one row per run, and `laws-exponents.csv`.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from base_runs import Scale, seeds_of
from matplotlib.figure import Figure
from over_seeds import over_seeds, slopes

import induction_memory as im
from induction_memory.errors import run_script

RESULTS = Path(__file__).parent / "results"
FACTORS = {
    "length": ("task.length", {"reduced": (32, 64, 128), "full": (64, 128, 256, 512)}),
    "batch": ("train.batch_size", {"reduced": (32, 128, 512), "full": (64, 256, 1024)}),
    "triggers": ("task.k", {"reduced": (2, 5, 10), "full": (2, 5, 10)}),
    "dimension": ("model.d_model", {"reduced": (64, 128, 256), "full": (64, 128, 256, 512)}),
    "step size": ("train.learning_rate", {"reduced": (0.25, 0.5, 1.0), "full": (0.1, 0.2, 0.4)}),
}
WINDOW = 11


def sweep_file(scale: Scale) -> str:
    """The sweep as `induction-memory sweep` reads it: each factor alone, around the preset."""
    preset, steps = ("demo", 300) if scale == "reduced" else ("figure-3", 600)
    lines = [f'preset = "{preset}"', f"seeds = {list(seeds_of(scale))}", "[set]", f"train.steps = {steps}"]
    lines += ["train.keep_optimizer = false", 'train.checkpoints = "every 100"']
    for factor, (path, values) in FACTORS.items():
        for value in values[scale]:
            lines += ["[[runs]]", f'name = "{factor.replace(" ", "-")}-{value}"', f"{path} = {value}"]
    return "\n".join(lines)


def born(accuracy: pd.Series, level: float = 0.5) -> float:
    """The first step from which the smoothed in-context accuracy is at least `level` to the end; nan if it is not."""
    smooth = np.convolve(accuracy.to_numpy(), np.ones(WINDOW) / WINDOW, mode="valid")
    return float(im.memory.first_lasting(smooth >= level, np.arange(len(smooth)) + WINDOW // 2))


def figure(table: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(11, 2.8), layout="constrained")
    for axes, (factor, own) in zip(drawn.subplots(1, 5, sharey=True), table.groupby("factor", sort=False), strict=True):
        for _, one in own.groupby("seed"):
            axes.plot(one["value"], one["born"], "o-", color="#2f6fb3", alpha=0.6, ms=3)
        axes.set(xscale="log", yscale="log", xlabel=factor)
        axes.set_xticks(sorted(own["value"].unique()), [f"{value:g}" for value in sorted(own["value"].unique())])
        axes.set_xticks([], minor=True)
    drawn.axes[0].set_ylabel("birth step")
    return drawn


def main(runs: Path, scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Train what `runs` does not hold yet, write the tables to `out`, and with `docs` draw birth-laws.png there."""
    runs.mkdir(parents=True, exist_ok=True)
    (runs / "sweep.toml").write_text(sweep_file(scale), encoding="utf-8")
    im.sweep.start(runs / "sweep.toml", runs / "sweep", workers=1)
    rows = []
    for factor, (_, values) in FACTORS.items():
        for value in values[scale]:
            for seed in seeds_of(scale):
                run = im.load(runs / "sweep" / f"{factor.replace(' ', '-')}-{value}_seed-{seed}")
                row = {"factor": factor, "value": value, "seed": seed, "born": born(run.metrics["accuracy_in_context"])}
                rows.append(row | {"accuracy": run.metrics["accuracy_in_context"].tail(20).mean()})
    table = pd.DataFrame(rows)
    exponents = over_seeds(slopes(table.dropna(), ["factor", "seed"], "value", "born"), ["factor"])
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "laws.csv", index=False, float_format="%.5g")
    exponents.to_csv(out / "laws-exponents.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(table).savefig(docs / "birth-laws.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
