"""Training curves: what the model gets right, and which memory each matrix has stored, step by step."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {
    "W_O2": "#2a9d4a",
    "W_K2": "#c8503c",
    "W_K1": "#8a8a8a",
    "W_K1_first64": "#7b4fa3",
    "W_F_kl": "#2f6fb3",
}
"""One colour a memory, in every figure."""

LABELS = {
    "W_O2": r"$W_O^2$",
    "W_K2": r"$W_K^2$",
    "W_K2_triggers": r"$W_K^2$ on $Q$",
    "W_K1": r"$W_K^1$",
    "W_K1_first64": r"$W_K^1$, $t < 64$",
    "W_F_kl": r"$d_{KL}(W_F, \pi_b)$",
}


def draw_accuracy(axes: Axes, metrics: pd.DataFrame, label: str = "in context", colour: str = "black") -> None:
    """In-context accuracy on each fresh batch."""
    measured = metrics.dropna(subset="accuracy_in_context")
    axes.plot(measured["step"], measured["accuracy_in_context"], color=colour, lw=1, label=label)
    axes.set(ylim=(0, 1.02), ylabel="in-context accuracy")


def draw_recall(axes: Axes, recalls: pd.DataFrame, names: Mapping[str, str] = LABELS) -> None:
    """Recall of each memory; `recalls` has steps as its index and a column a probe."""
    short = "W_K1_first64" in recalls and recalls["W_K1_first64"].equals(recalls["W_K1"])  # T is at most 64
    for name in names:
        if name in recalls and name != "W_F_kl" and not (short and name == "W_K1_first64"):
            axes.plot(recalls.index, recalls[name], color=COLOURS.get(name), lw=1.5, label=names[name])
    axes.set(ylim=(0, 1.02), ylabel="memory recall")


def birth(metrics: pd.DataFrame, recalls: pd.DataFrame, title: str) -> Figure:
    """Loss, in-context accuracy and recalls of one run, one above another."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    loss, accuracy, recall = figure.subplots(3, 1, sharex=True)
    for column, label, colour in (
        ("loss_in_context", "in context", "black"),
        ("loss_global", "global", "#2f6fb3"),
        ("loss_first_occurrence", "first occurrence of a trigger", "#d9a441"),
    ):
        measured = metrics.dropna(subset=column)
        loss.plot(measured["step"], measured[column], color=colour, lw=1, label=label)
    loss.set(ylabel="loss (nats)", title=title)
    draw_accuracy(accuracy, metrics)
    draw_recall(recall, recalls)
    recall.set_xlabel("step")
    for axes in (loss, recall):
        axes.legend(frameon=False, fontsize="small")
    for axes in (loss, accuracy, recall):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    return figure
