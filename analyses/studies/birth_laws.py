"""Birth laws: how the birth step grows with length, batch, triggers, dimension and step size.

    python analyses/studies/birth_laws.py --runs runs/laws --docs docs/studies                           # up to an hour
    python analyses/studies/birth_laws.py --scale full --runs runs/laws-full --out runs/laws-results     # days

Trains `sweeps/birth-laws-SCALE.toml` (as `induction-memory sweep` does, resumable). Writes `laws.csv`, one row per run
and level of accuracy, and `laws-exponents.csv`, the exponents over each range of a factor.
"""

from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
from base_runs import Scale
from jaxtyping import Float
from matplotlib.figure import Figure
from over_seeds import common_slope, over_seeds, slopes

import induction_memory as im
from induction_memory.errors import run_script

RESULTS, SWEEPS = Path(__file__).parent / "results", Path(__file__).parent / "sweeps"
FACTORS = {
    "length": "task.length",
    "batch": "train.batch_size",
    "triggers": "task.k",
    "dimension": "model.d_model",
    "step-size": "train.learning_rate",
}
LEVELS, WINDOW = (0.25, 0.5, 0.75), 11


def born(accuracy: Float[np.ndarray, " step"], level: float) -> float:
    """The first step from which the smoothed in-context accuracy is at least `level` to the end; nan if it is not."""
    smooth = np.convolve(accuracy, np.ones(WINDOW) / WINDOW, mode="valid")
    return float(im.memory.first_lasting(smooth >= level, np.arange(len(smooth)) + WINDOW // 2))


def measure(sweep: Path) -> pd.DataFrame:
    """Each run counts for the factor in its name, and the runs of the preset for every factor that has other values."""
    found, rows = im.sweep.table(sweep).to_dict("records"), []
    for factor, path in FACTORS.items():
        own = [run for run in found if run["run"].startswith(("preset", factor)) and run["state"] == "finished"]
        for run in sorted(own, key=lambda run: (run[path], run["seed"])):
            accuracy = im.load(sweep / run["run"]).metrics["accuracy_in_context"].to_numpy()
            row = {"factor": factor, "value": run[path], "seed": run["seed"], "steps": len(accuracy) - 1}
            row |= {"accuracy": accuracy[-20:].mean()}
            rows += [row | {"level": level, "born": born(accuracy, level)} for level in LEVELS]
    return pd.DataFrame(rows).groupby("factor", sort=False).filter(lambda own: own["value"].min() < own["value"].max())


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """Slopes of log birth step over log factor from each value to each larger one, of seeds that have all values
    between; a birth that did not happen counts as the last step. `low` and `high` are over seeds, `fit_low` and
    `fit_high` come from the deviations from one slope."""
    parts, counted = [], table.assign(born=table["born"].fillna(table["steps"]), missing=table["born"].isna())
    for factor, level in product(counted["factor"].unique(), LEVELS):
        own = counted.query("factor == @factor and level == @level")
        for first, last in combinations(own["value"].unique(), 2):
            between = own.query("@first <= value <= @last")
            whole = between.groupby("seed")["value"].transform("nunique") == len(set(between["value"]))
            part = between.loc[whole]
            which = {"factor": factor, "level": level, "first": first, "last": last, "missing": part["missing"].sum()}
            slope = over_seeds(slopes(part.assign(**which), [*which, "seed"], "value", "born"), list(which))
            low, high = common_slope(part, "value", "born")
            parts.append(slope.assign(fit_low=low, fit_high=high))
    return pd.concat(parts)


def figure(table: pd.DataFrame) -> Figure:
    factors = table.groupby("factor", sort=False)
    drawn = Figure(figsize=(3.5 + 1.9 * len(factors), 2.9), layout="constrained")
    panels = drawn.subplots(1, len(factors), sharey=True, squeeze=False)[0]
    for axes, (factor, own) in zip(panels, factors, strict=True):
        for level, part in own.groupby("level"):
            never = part[part["born"].isna()]
            mean = over_seeds(part.assign(born=part["born"].fillna(part["steps"])), ["value"], "born")
            (line,) = axes.plot(mean["value"], mean["mean"], label=f"accuracy {level}")
            axes.plot(part["value"], part["born"], "o", color=line.get_color(), alpha=0.6, ms=3)
            axes.plot(never["value"], never["steps"], "^", color=line.get_color(), mfc="none")
        axes.set(xscale="log", yscale="log", xlabel=str(factor).replace("-", " "))
        axes.set_xticks(own["value"].unique(), [f"{value:g}" for value in own["value"].unique()])
        axes.set_xticks([], minor=True)
    drawn.axes[0].set_yticks((20, 50, 100, 200), ("20", "50", "100", "200"))
    drawn.axes[0].set_yticks([], minor=True)
    drawn.axes[0].set_ylabel("birth step")
    drawn.legend(*drawn.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return drawn


def main(runs: Path, scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Train what `runs` does not hold yet, write the tables to `out`, and with `docs` draw birth-laws.png there."""
    im.sweep.start(SWEEPS / f"birth-laws-{scale}.toml", runs, workers=1)
    table = measure(runs)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "laws.csv", index=False, float_format="%.5g")
    exponents(table).to_csv(out / "laws-exponents.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(table).savefig(docs / "birth-laws.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
