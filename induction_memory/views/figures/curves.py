"""Curves over training: accuracy and loss, recall of each memory, and the distance to predictors."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from induction_memory.errors import require

COLOURS = {
    "W_O2": "#1f7a3d",
    "W_K2": "#b8432f",
    "W_K2_triggers": "#e79a84",
    "W_K1": "#7b4fa3",
    "W_K1_first64": "#bd9be6",
    "W_F_kl": "#2563a8",
}
"""One colour per memory, the same in every figure and on the page; a part of a memory has a lighter shade of it."""

LABELS = {
    "W_O2": r"$W_O^2$",
    "W_K2": r"$W_K^2$",
    "W_K2_triggers": r"$W_K^2$ on $Q$",
    "W_K1": r"$W_K^1$",
    "W_K1_first64": r"$W_K^1$, $t < 64$",
    "W_F_kl": r"$d_{KL}(W_F, \pi_b)$",
}

RECALLS = ("W_O2", "W_K2", "W_K1", "W_K1_first64")
"""The recall probes that the paper draws."""
SHARE = (-0.02, 1.03)
"""Limits of an axis of accuracy or recall, a little wider than 0 to 1 so that lines at the ends are visible."""


@runtime_checkable
class RunCurves(Protocol):
    """The measurements of one run over training."""

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per training step: `step`, losses and accuracies; NaN where something was not measured."""
        ...

    @property
    def probes(self) -> pd.DataFrame:
        """One row per stored step (the index), one column per probe."""
        ...


def measured(metrics: pd.DataFrame, column: str) -> pd.Series:
    """One column against the step, where it was measured; empty if the column is missing."""
    return probed(metrics.set_index("step"), column)


def probed(table: pd.DataFrame, column: str) -> pd.Series:
    """One column without its gaps; empty if the column is missing."""
    if column not in table:
        return pd.Series(dtype=float, name=column)
    return pd.Series(table[column].to_numpy(dtype=float), index=table.index, name=column).dropna()


def drawn_recalls(recalls: pd.DataFrame, names: Sequence[str] = RECALLS) -> dict[str, str]:
    """Which columns of `recalls` to draw: column -> its memory, one of `names`.

    With several heads each head has a column, called 'W_K2 L2H1' or 'W_K2[L1H1>L2H1]'. Up to T = 64 the first 64
    positions are all positions, so they are drawn once.
    """
    heads = {name: re.compile(rf"{name}( L\w+|\[[^:]+\])?") for name in names}
    held = {name: [str(c) for c in recalls if heads[name].fullmatch(str(c))] for name in names}
    early, whole = (recalls[held.get(name, [])].to_numpy() for name in ("W_K1_first64", "W_K1"))
    short = early.shape == whole.shape and pd.DataFrame(early).equals(pd.DataFrame(whole))
    return {c: name for name in names for c in held[name] if not (short and name == "W_K1_first64")}


def draw_accuracy(axes: Axes, metrics: pd.DataFrame, label: str = "in context", colour: str = "black") -> None:
    """In-context accuracy on each fresh batch."""
    values = measured(metrics, "accuracy_in_context")
    axes.plot(values.index, values, color=colour, lw=1, label=label)
    axes.set(ylim=SHARE, ylabel="in-context accuracy")


def draw_recall(axes: Axes, recalls: pd.DataFrame, names: Mapping[str, str] = LABELS) -> None:
    """Recall of each memory; `recalls` has steps as its index and one column per probe."""
    named = set()
    for column, name in drawn_recalls(recalls, [name for name in names if name != "W_F_kl"]).items():
        label = names[name] if name not in named else None
        axes.plot(recalls.index, recalls[column], color=COLOURS[name], lw=1.5 if column == name else 0.9, label=label)
        named.add(name)
    axes.set(ylim=SHARE, ylabel="memory recall")


def draw_range(
    axes: Axes, series: Sequence[pd.Series], colour: str, label: str | None = None, lw: float | int = 1.5
) -> None:
    """The mean of several runs as a line and their range as a band, over the steps that all of them have."""
    require(len(series) > 0, "series", "at least one run", len(series))
    table = pd.concat(series, axis="columns", join="inner")
    axes.plot(table.index, table.mean(axis="columns"), color=colour, lw=lw, label=label)
    if len(series) > 1:
        low, high = table.min(axis="columns"), table.max(axis="columns")
        axes.fill_between(table.index, low, high, color=colour, alpha=0.18, lw=0)


def birth_figure(metrics: pd.DataFrame, recalls: pd.DataFrame, title: str) -> Figure:
    """Loss, in-context accuracy and recalls of one run, one above another.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> len(im.figures.birth_figure(run.metrics, im.probes.recall(run), run.name).axes)
    3
    """
    figure = Figure(figsize=(7, 7), layout="constrained")
    loss, accuracy, recall = figure.subplots(3, 1, sharex=True)
    for column, label, colour in (
        ("loss_in_context", "in context", "black"),
        ("loss_global", "global", "#2f6fb3"),
        ("loss_first_occurrence", "first occurrence of a trigger", "#d9a441"),
    ):
        values = measured(metrics, column)
        loss.plot(values.index, values, color=colour, lw=1, label=label)
    loss.set(ylabel="loss (nats)", title=title)
    loss.set_ylim(bottom=0)
    draw_accuracy(accuracy, metrics)
    draw_recall(recall, recalls)
    recall.set_xlabel("step")
    for axes in (loss, recall):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small")
    for axes in (loss, accuracy, recall):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    return figure


CAP = 1.5
"""The axis of distances ends at this multiple of the median at the first step, or higher if the closest curve needs
it."""


def predictor_figure(
    tables: dict[str, pd.DataFrame], phases: dict[str, Sequence[Any]] | None = None, *, cap: float | None = None
) -> Figure:
    """One panel per table, with its key as title: one curve per column against the step, on a logarithmic axis.

    Phases (predictor, first, last) are shaded. `cap` is the end of the axis, by default `CAP` times the first median.

    >>> import induction_memory as im
    >>> distances = im.probes.predictor_distances("induction-small")
    >>> len(im.figures.predictor_figure({"induction-small": distances}).axes)
    1
    """
    require(len(tables) > 0, "tables", "at least one", "none")
    figure = Figure(figsize=(4.6 * len(tables), 3.4), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(tables)))
    for panel, (title, table) in zip(axes, tables.items(), strict=True):
        _distances(panel, table, (phases or {}).get(title, ()), cap)
        panel.set_title(title, fontsize=10)
    axes[0].set_ylabel("KL(predictor || model), nats")
    return figure


def _distances(axes: Axes, table: pd.DataFrame, phases: Sequence[Any] = (), cap: float | None = None) -> None:
    """The curves of one table, with the axis cut at `cap`; a phase is a band in the colour of its predictor."""
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
