"""Distance to each predictor over training, with the phases shaded."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from induction_memory.errors import require

CAP = 1.5
"""The axis ends at this multiple of the median distance at the first step, or where the closest predictor needs it."""


@runtime_checkable
class Span(Protocol):
    """A phase: which predictor, from which step to which."""

    @property
    def predictor(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


def predictor_figure(
    tables: dict[str, pd.DataFrame], phases: dict[str, Sequence[Span]] | None = None, *, cap: float | None = None
) -> Figure:
    """One panel per table (its title the key): a curve per column against the step, on a logarithmic step axis."""
    require(len(tables) > 0, "tables", "at least one", "none")
    figure = Figure(figsize=(4.6 * len(tables), 3.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(tables)))
    for panel, (title, table) in zip(axes, tables.items(), strict=True):
        draw_distances(panel, table, (phases or {}).get(title, ()), cap)
        panel.set_title(title, fontsize=10)
    axes[0].set_ylabel("KL(predictor || model), nats")
    return figure


def draw_distances(axes: Axes, table: pd.DataFrame, phases: Sequence[Span] = (), cap: float | None = None) -> None:
    """The curves of one table, the axis cut at `cap`; a phase is a band in the colour of its predictor."""
    steps = table.index.to_numpy() + 1
    colours = {str(name): f"C{i}" for i, name in enumerate(table)}
    for name in table:
        axes.plot(steps, table[name].to_numpy(), color=colours[str(name)], label=str(name), linewidth=1.4)
    for phase in phases:
        axes.axvspan(phase.first + 1, phase.last + 1, color=colours[phase.predictor], alpha=0.12, linewidth=0)
    first = table.iloc[0].to_numpy()
    top = cap if cap is not None else max(CAP * float(np.median(first)), 1.1 * float(table.min(axis=1).max()))
    axes.set_ylim(0, top)
    axes.set_xscale("log")
    axes.set_xlabel("step + 1")
    axes.legend(fontsize=8, frameon=False)
