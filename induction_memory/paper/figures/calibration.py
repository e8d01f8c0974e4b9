"""The local learning coefficient over its settings: where the lines are flat, the step size does not matter."""

import pandas as pd
from matplotlib.figure import Figure

from induction_memory.errors import require

COLOURS = ("#2f6fb3", "#c8503c", "#3f8f5b", "#8a5aa8", "#b8860b", "#555555")


def calibration_figure(table: pd.DataFrame, title: str = "") -> Figure:
    """One line per n_beta over the step size, from the table that `calibrate` returns.

    Bars are 95 % intervals over chains. A full marker is on the plateau. A cross at the lower edge is a setting whose
    chains diverged.

        >>> rows = [(10, 1e-4, 2.0, 0.1, "", False), (10, 1e-3, 2.1, 0.1, "", True)]
        >>> table = pd.DataFrame(rows, columns=["n_beta", "step_size", "value", "se", "note", "plateau"])
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
        bars = 1.96 * found["se"].to_numpy(dtype=float)
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
