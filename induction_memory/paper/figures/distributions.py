"""Figures 4, 5 and 6: what the distribution of triggers and outputs does to learning.

Figure 4 compares the loss on global tokens with the loss on in-context ones, training outputs with test outputs, and
the recall of the induction head's memories with the divergence of W_F from the bigrams. Figures 5 and 6 draw the
recalls of the same experiments, with one panel per memory. A setting has one colour in all of them.
"""

from collections.abc import Iterable, Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from induction_memory.errors import require
from induction_memory.views.figures.curves import (
    COLOURS,
    LABELS,
    RECALLS,
    SHARE,
    RunCurves,
    draw_recall,
    measured,
    probed,
)
from induction_memory.views.figures.panels import INK, legend_above, legend_below, panels, plain, sign, title

SETTINGS = ("#d0312d", "#e8952b", "#3b3b3b", "#8fa02e", "#2457a8")
"""In the order of the experiments: one frequent fixed trigger is red, five rare ones are blue, as in the paper."""
OUTPUTS = {"uniform": "#0f8a96", "bigram": "#b8569a"}
"""The distribution of outputs in training."""


def setting_colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each setting: by the distribution it trains on where its label names one, else by its place."""
    colours = {}
    for i, label in enumerate(labels):
        named = sorted((label.index(word), colour) for word, colour in OUTPUTS.items() if word in label)
        colours[label] = named[0][1] if named else SETTINGS[i % len(SETTINGS)]
    return colours


def global_and_in_context(
    left: Mapping[str, RunCurves], centre: Mapping[str, pd.Series], right: RunCurves, note: str = ""
) -> Figure:
    """Figure 4. Labels of `centre` read 'train uniform, test bigram'; a test on other outputs is dashed."""
    figure, (losses, accuracy, recall) = panels(1, 3, 3.7, 3.6)

    colours = setting_colours(left)
    for label, run in left.items():
        for column, style in (("loss_in_context", "-"), ("loss_global", "--")):
            values = measured(run.metrics, column)
            losses.plot(values.index, values, style, color=colours[label], lw=1)
    names = [Line2D([], [], color=colours[label], lw=1.5, label=label) for label in left]
    kinds = {"in-context": "-", "global": "--"}
    names += [Line2D([], [], color=INK, lw=1, ls=style, label=label) for label, style in kinds.items()]
    losses.set(ylabel="loss")
    losses.set_ylim(bottom=0)
    legend_below(losses, names)
    title(losses, "global and in-context loss")

    for label, colour in setting_colours(centre).items():
        values = centre[label].dropna()
        accuracy.plot(values.index, values, _style(label), color=colour, lw=1.2, label=label)
    accuracy.set(ylim=SHARE, ylabel="in-context accuracy")
    legend_below(accuracy, accuracy.get_legend_handles_labels()[0], columns=1)
    title(accuracy, "output tokens in training and test")

    draw_recall(recall, right.probes, {name: LABELS[name] for name in RECALLS})
    handles = recall.get_legend_handles_labels()[0]
    if "W_F_kl" in right.probes:
        handles += draw_divergence(recall, probed(right.probes, "W_F_kl"))
    legend_below(recall, handles)
    title(recall, "memory probes")

    for axes in (losses, accuracy, recall):
        axes.set_xlabel("iteration")
        axes.margins(x=0.01)
    return sign(figure, note)


def recalls_by_setting(runs: Mapping[str, RunCurves], note: str = "") -> Figure:
    """Figures 5 and 6: one panel per memory, one colour per setting.

    W_K^1 is recalled over all positions. A column 'W_K2 drawn' takes the place of 'W_K2' (with fixed triggers the paper
    shows recall on the triggers alone).
    """
    require(len(runs) > 0, "runs", "at least one setting", len(runs))
    figure, flat = panels(1, 3, 3.1, 2.9, share_y=True)
    colours = setting_colours(runs)
    heads = {"W_K1": r"$W_K^1$ (all positions)", "W_K2": r"$W_K^2$", "W_O2": r"$W_O^2$"}
    if any("W_K2 drawn" in run.probes for run in runs.values()):
        heads["W_K2"] = r"$W_K^2$ (fixed triggers: on $Q$ alone)"
    for axes, (name, words) in zip(flat, heads.items(), strict=True):
        for label, run in runs.items():
            column = f"{name} drawn" if f"{name} drawn" in run.probes else name
            if column in run.probes:
                values = probed(run.probes, column)
                axes.plot(values.index, values, color=colours[label], lw=1.4)
        axes.set(ylim=SHARE, xlabel="iteration")
        axes.margins(x=0.01)
        title(axes, words)
    flat[0].set_ylabel("memory recall")
    legend_above(figure, [Line2D([], [], color=colours[label], lw=1.8, label=label) for label in runs])
    return sign(figure, note)


def draw_divergence(axes: Axes, divergence: pd.Series) -> list[Line2D]:
    """The divergence of W_F from the bigrams, dashed, on an axis of its own to the right of the recalls."""
    beside = axes.twinx()
    plain(beside)
    beside.spines["right"].set_visible(True)
    colour = COLOURS["W_F_kl"]
    lines = beside.plot(divergence.index, divergence, "--", color=colour, lw=1.3, label=LABELS["W_F_kl"])
    beside.set_ylabel(LABELS["W_F_kl"], color=colour)
    beside.tick_params(axis="y", colors=colour)
    beside.spines["right"].set_color(colour)
    top = max(beside.get_ylim()[1], 1e-9)
    beside.set_ylim(top * SHARE[0] / SHARE[1], top)  # zero where the recalls have theirs
    return lines


def _style(label: str) -> str:
    """Solid where the model is tested on the outputs that it trained on, dashed elsewhere."""
    train, _, test = label.removeprefix("train ").partition(", test ")
    return "-" if test in ("", train) else "--"
