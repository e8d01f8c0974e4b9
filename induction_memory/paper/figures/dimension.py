"""Figures 8 and 9: higher dimension makes W_O^2 easier to learn, by descent (8) and in one step (9)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from induction_memory.errors import require
from induction_memory.views.figures.curves import SHARE
from induction_memory.views.figures.panels import LABEL, TICK, panels, sequential, sign, title


def dimension(
    fixed: Mapping[int, pd.Series],
    tuned: Mapping[int, pd.Series],
    step_sizes: Mapping[int, float | int],
    note: str = "",
) -> Figure:
    """Figure 8: recall of W_O^2, trained alone, through training; one curve per dimension, each a Series over steps.

    `step_sizes` are the tuned ones; the right panel's legend names them.
    """
    figure, flat = panels(1, 2, 4.0, 2.9, share_y=True)
    dimensions = sorted({*fixed, *tuned})
    colours = dict(zip(dimensions, sequential(len(dimensions)), strict=True))
    for axes, runs, sizes, words in (
        (flat[0], fixed, {}, "fixed step size"),
        (flat[1], tuned, step_sizes, r"tuned step size $\eta$"),
    ):
        for d in sorted(runs):
            values = runs[d].dropna()
            label = f"$d$ = {d}" + (rf", $\eta$ = {sizes[d]:g}" if d in sizes else "")
            axes.plot(values.index, values, color=colours[d], lw=1.5, label=label)
        axes.set(ylim=SHARE, xlabel="iteration")
        axes.margins(x=0.01)
        title(axes, words)
        _beside(axes)
    flat[0].set_ylabel(r"$W_O^2$ recall")
    return sign(figure, note)


def one_step(table: pd.DataFrame, note: str = "") -> Figure:
    """Figure 9: recall R_1 of the one-step estimate against d and against the number of batches.

    `table` has columns d, batches and recall; several rows of one (d, batches) are repetitions, drawn as their mean
    with their range as a band. d = inf stands for orthonormal embeddings and has a curve but no place on an axis.
    """
    missing = {"d", "batches", "recall"} - set(table.columns)
    require(not missing, "table", "columns d, batches and recall", list(table.columns))
    figure, (left, right) = panels(1, 2, 4.0, 2.9, share_y=True)
    for axes, x, curve, words in (
        (left, "d", "batches", "dimension $d$"),
        (right, "batches", "d", "number of batches"),
    ):
        groups = sorted(set(table[curve].tolist()))
        for value, colour in zip(groups, sequential(len(groups)), strict=True):
            grouped = table.loc[(table[curve] == value).to_numpy()].groupby(x)["recall"]
            spread = grouped.agg(["mean", "min", "max"])
            spread = spread.loc[np.isfinite(spread.index)]
            axes.plot(spread.index, spread["mean"], "o-", ms=3, lw=1.3, color=colour, label=_number(value))
            axes.fill_between(spread.index, spread["min"], spread["max"], color=colour, alpha=0.15, lw=0)
        axes.set_xscale("log", base=2 if x == "d" else 10)
        ticks = sorted({value for value in table[x].tolist() if np.isfinite(value)})
        axes.set_xticks(ticks, [_number(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set(ylim=SHARE, xlabel=words)
        _beside(axes, "batches" if curve == "batches" else "$d$")
    left.set_ylabel("one-step recall $R_1$")
    return sign(figure, note)


def _number(value: float | int) -> str:
    return f"{value:g}" if np.isfinite(value) else r"$\infty$"


def _beside(axes: Axes, heading: str | None = None) -> None:
    """The legend to the right of the panel, the largest value on top as its curve is."""
    handles = axes.get_legend_handles_labels()[0][::-1]
    if handles:
        axes.legend(
            handles=handles, title=heading, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
            fontsize=TICK, title_fontsize=LABEL, handlelength=1.5,
        )  # fmt: skip
