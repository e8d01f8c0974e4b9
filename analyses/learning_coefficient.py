"""Which settings give the local learning coefficient of a model or a matrix: a sweep over n_beta and step size.

    python analyses/learning_coefficient.py --docs docs
    python analyses/learning_coefficient.py induction-alone --part W_K2 --n-betas 30 100 --step-sizes 1e-3

Prints the calibration sweep (`calibrate`) and draws it. The whole sweep takes three minutes on one core.
"""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import tyro
from matplotlib.figure import Figure

import induction_memory as im
from induction_memory.errors import require, run_script
from induction_memory.probes.langevin import Langevin, calibrate
from induction_memory.terminal import show

COLOURS = ("#2f6fb3", "#c8503c", "#3f8f5b", "#8a5aa8", "#b8860b", "#555555")


def calibration_figure(table: pd.DataFrame, title: str = "") -> Figure:
    """One line per n_beta over the step size, from the table that `calibrate` returns.

    Bars are 95 % intervals over chains. A full marker is on the plateau. A cross at the lower edge is a setting whose
    chains diverged.

        >>> rows = [(10, 1e-4, 2.0, 0.1, "", False), (10, 1e-3, 2.1, 0.1, "", True)]
        >>> table = pd.DataFrame(rows, columns=["n_beta", "step_size", "value", "value_se", "note", "plateau"])
        >>> calibration_figure(table).axes[0].get_xlabel()
        'step size'
    """
    require(len(table) > 0, "table", "at least one setting", "none")
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for place, (n_beta, own) in enumerate(table.sort_values("step_size").groupby("n_beta")):
        colour = COLOURS[place % len(COLOURS)]
        found, lost = own.loc[own["value"].notna()], own.loc[own["value"].isna()]
        step_size, value = found["step_size"].to_numpy(dtype=float), found["value"].to_numpy(dtype=float)
        bars = 1.96 * found["value_se"].to_numpy(dtype=float)
        axes.errorbar(step_size, value, yerr=bars, color=colour, lw=1.4, capsize=3, label=f"n_beta {n_beta:g}")
        for flat, face in ((True, colour), (False, "white")):
            chosen = found["plateau"].to_numpy(dtype=bool) == flat
            axes.plot(step_size[chosen], value[chosen], "o", color=colour, mfc=face, zorder=3)
        edge = axes.get_xaxis_transform()
        axes.plot(lost["step_size"], [0.03 + 0.04 * place] * len(lost), "x", color=colour, transform=edge)
    axes.set(xscale="log", yscale="symlog", xlabel="step size", ylabel="learning coefficient", title=title)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    return figure


def main(
    run: tyro.conf.Positional[str] = "markov-1",
    /,
    part: str = "all",
    step: int | None = None,
    n_betas: tuple[float, ...] = (10, 30, 100),
    step_sizes: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3, 2e-3),
    burn_in: int = 200,
    draws: int = 200,
    chains: int = 3,
    batch_size: int = 16,
    docs: Path | None = None,
) -> None:
    """Sweep, print and draw.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        part: "all", a matrix (W_K2), a head (L2H1) or a matrix of a head (W_K2 of L2H1).
        step: a stored step; the last by default.
        n_betas: inverse temperatures.
        step_sizes: step sizes of the chains.
        burn_in: updates before the first draw.
        draws: draws per chain.
        chains: independent chains.
        batch_size: sequences per minibatch.
        docs: folder for learning-coefficient.png and its numbers.
    """
    opened = im.load(run)
    at = int(opened.steps[-1]) if step is None else step
    how = replace(Langevin(), draws=draws, burn_in=burn_in, chains=chains, batch_size=batch_size)
    table = calibrate(opened, part, step=at, n_betas=n_betas, step_sizes=step_sizes, sampling=how)
    show(table)
    if docs is not None:
        title = f"{part} of {opened.name}, step {at}"
        calibration_figure(table, title).savefig(docs / "learning-coefficient.png", dpi=120)
        table.to_csv(docs / "learning-coefficient.csv", index=False)


if __name__ == "__main__":
    run_script(main, __doc__)
