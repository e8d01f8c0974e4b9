"""Curves over the checkpoints of a series: one panel per quantity, one line per head or component."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from induction_memory.errors import require

LABELLED = 8
"""Lines that the legend names: those with the highest last value, or the lowest where low is strong."""


def series_figure(panels: Mapping[str, pd.DataFrame], title: str = "", *, lowest: Sequence[str] = ()) -> Figure:
    """One panel per table (index: step, one column per line), side by side over a logarithmic axis of steps.

    Panels named in `lowest` have their strongest lines at the bottom.
    """
    require(len(panels) > 0, "panels", "at least one", "none")
    figure = Figure(figsize=(1 + 3.6 * len(panels), 3.4), layout="constrained")
    for axes, (name, table) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        last = table.ffill().iloc[-1].sort_values(ascending=name in lowest)
        named = list(last.index[:LABELLED])
        for line in table.columns:
            values = table[line].dropna()
            label = str(line) if line in named and len(table.columns) > 1 else None
            axes.plot(values.index, values, lw=1.3 if line in named else 0.5, marker=".", ms=3, label=label)
        first = min((step for step in table.index if step > 0), default=1)
        axes.set_xscale("symlog", linthresh=float(first))
        axes.set(title=name, xlabel="step")
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        if len(table.columns) > 1:
            axes.legend(frameon=False, fontsize="x-small")
    figure.suptitle(title)
    return figure
