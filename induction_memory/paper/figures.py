"""The paper's Figures 3 to 6 and 8 to 10, from tables and arrays; `drawing.py` says which runs each is drawn from.

Figure 3 has one column per experiment: in-context accuracy above, recall of each memory below. Figure 4 compares the
loss on global tokens with the loss on in-context ones, training outputs with test outputs, and the recall of the
induction head's memories with the divergence of W_F from the bigrams. Figures 5 and 6 draw the recalls of the same
experiments, with one panel per memory. A setting has one colour in all of them. Figures 8 and 9 show that higher
dimension makes W_O^2 easier to learn, by descent (8) and in one step (9). Figure 10 follows a more realistic
architecture (ReLU MLP, LayerNorm, every parameter trained) through training.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from induction_memory.errors import require
from induction_memory.views.figures import curves
from induction_memory.views.figures.curves import COLOURS, LABELS, SHARE, RunCurves, measured, probed
from induction_memory.views.figures.panels import (
    FAINT,
    INK,
    LABEL,
    TICK,
    legend_above,
    legend_below,
    panels,
    plain,
    sequential,
    sign,
    title,
)  # fmt: skip

NOTHING = "nothing frozen"
"""The label of the column without a line at the end of freezing."""


def freezing(runs: Mapping[str, Sequence[RunCurves]], frozen_until: int | None = 300, note: str = "") -> Figure:
    """Figure 3: one column per label, in order, with a dotted line where freezing ends (none for 'nothing frozen').

    Over several seeds the line is the mean and the band the range.
    """
    require(len(runs) > 0, "runs", "at least one experiment", len(runs))
    count = len(runs)
    figure, flat = panels(2, count, 2.15, 2.15, share_y=True)
    shown: set[str] = set()
    for accuracy, recall, (label, seeds) in zip(flat[:count], flat[count:], runs.items(), strict=True):
        require(len(seeds) > 0, f"runs[{label!r}]", "at least one seed", len(seeds))
        curves.draw_range(accuracy, [measured(run.metrics, "accuracy_in_context") for run in seeds], INK, lw=1)
        for column, name in curves.drawn_recalls(seeds[0].probes).items():
            kept = [probed(run.probes, column) for run in seeds if column in run.probes]
            curves.draw_range(recall, kept, COLOURS[name])
            shown.add(name)
        title(accuracy, label)
        accuracy.tick_params(labelbottom=False)
        last = max(run.metrics["step"].to_numpy().max() for run in seeds)
        for axes in (accuracy, recall):
            axes.set(ylim=SHARE, xlim=(0, last))
            if frozen_until is not None and label != NOTHING:
                axes.axvline(frozen_until, color=FAINT, lw=0.9, ls=":")
        recall.set_xlabel("iteration")
    flat[0].set_ylabel("in-context accuracy")
    flat[count].set_ylabel("memory recall")
    handles = [Line2D([], [], color=COLOURS[name], lw=1.8, label=LABELS[name]) for name in LABELS if name in shown]
    legend_above(figure, handles)
    seeds = max(map(len, runs.values()))
    spread = f"line: mean, band: range of {seeds} seeds" if seeds > 1 else ""
    return sign(figure, "; ".join(filter(None, (note, spread))))


SETTINGS = ("#d0312d", "#e8952b", "#3b3b3b", "#8fa02e", "#2457a8")
"""Colours in the order of the experiments, as in the paper: one frequent fixed trigger is red, five rare ones are
blue."""
OUTPUTS = {"uniform": "#0f8a96", "bigram": "#b8569a"}
"""The distribution of outputs in training."""


def setting_colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each setting: by its training distribution if the label names one, otherwise by its position."""
    colours = {}
    for i, label in enumerate(labels):
        named = sorted((label.index(word), colour) for word, colour in OUTPUTS.items() if word in label)
        colours[label] = named[0][1] if named else SETTINGS[i % len(SETTINGS)]
    return colours


LOSSES = {"loss_in_context": ("in-context", "-"), "loss_global": ("global", "--")}


def global_and_in_context(
    left: Mapping[str, RunCurves], centre: Mapping[str, pd.Series], right: RunCurves, note: str = ""
) -> Figure:
    """Figure 4. Labels of `centre` read 'train uniform, test bigram'; a test on other outputs is dashed."""
    figure, (losses, accuracy, recall) = panels(1, 3, 3.7, 3.6)

    colours = setting_colours(left)
    for label, run in left.items():
        _draw_losses(losses, run, colours[label])
    names = [Line2D([], [], color=colours[label], lw=1.5, label=label) for label in left]
    names += [Line2D([], [], color=INK, lw=1, ls=style, label=label) for label, style in LOSSES.values()]
    legend_below(losses, names)
    title(losses, "global and in-context loss")

    for label, colour in setting_colours(centre).items():
        values = centre[label].dropna()
        accuracy.plot(values.index, values, _style(label), color=colour, lw=1.2, label=label)
    accuracy.set(ylim=SHARE, ylabel="in-context accuracy")
    legend_below(accuracy, accuracy.get_legend_handles_labels()[0], columns=1)
    title(accuracy, "output tokens in training and test")

    legend_below(recall, _draw_recalls(recall, right))
    title(recall, "memory probes")
    return sign(_over_training(figure, losses, accuracy, recall), note)


def realistic(run: RunCurves, note: str = "") -> Figure:
    """Figure 10: loss on global and in-context tokens, in-context accuracy, and recall of each memory of one run."""
    figure, (loss, accuracy, recall) = panels(1, 3, 3.4, 3.1)
    _draw_losses(loss, run, INK)
    legend_below(loss, loss.get_legend_handles_labels()[0])
    curves.draw_accuracy(accuracy, run.metrics, colour=INK)
    handles = _draw_recalls(recall, run)
    legend_below(recall, handles, columns=2 if len(handles) % 2 == 0 else 3)
    return sign(_over_training(figure, loss, accuracy, recall), note)


def _draw_losses(axes: Axes, run: RunCurves, colour: str) -> None:
    """Solid in context, dashed on global tokens."""
    for column, (label, style) in LOSSES.items():
        values = measured(run.metrics, column)
        if len(values):
            axes.plot(values.index, values, style, color=colour, lw=1, label=label)
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)


def _draw_recalls(axes: Axes, run: RunCurves) -> Sequence[Artist]:
    """The recalls and, if present, the divergence of W_F; returns the legend's lines."""
    curves.draw_recall(axes, run.probes, {name: LABELS[name] for name in curves.RECALLS})
    handles = axes.get_legend_handles_labels()[0]
    divergence = _draw_divergence(axes, probed(run.probes, "W_F_kl")) if "W_F_kl" in run.probes else []
    return [*handles, *divergence]


def _over_training(figure: Figure, *flat: Axes) -> Figure:
    for axes in flat:
        axes.set_xlabel("iteration")
        axes.margins(x=0.01)
    return figure


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
        axes.set_ylim(SHARE)
        title(axes, words)
    flat[0].set_ylabel("memory recall")
    legend_above(figure, [Line2D([], [], color=colours[label], lw=1.8, label=label) for label in runs])
    return sign(_over_training(figure, *flat), note)


def _draw_divergence(axes: Axes, divergence: pd.Series) -> list[Line2D]:
    """The divergence of W_F from the bigrams, dashed, on a separate axis at the right."""
    beside = axes.twinx()
    plain(beside)
    beside.spines["right"].set_visible(True)
    colour = COLOURS["W_F_kl"]
    lines = beside.plot(divergence.index, divergence, "--", color=colour, lw=1.3, label=LABELS["W_F_kl"])
    beside.set_ylabel(LABELS["W_F_kl"], color=colour)
    beside.tick_params(axis="y", colors=colour)
    beside.spines["right"].set_color(colour)
    top = max(beside.get_ylim()[1], 1e-9)
    beside.set_ylim(top * SHARE[0] / SHARE[1], top)  # zero at the same height as for the recalls
    return lines


def _style(label: str) -> str:
    """Solid if test outputs are the training outputs, otherwise dashed."""
    train, _, test = label.removeprefix("train ").partition(", test ")
    return "-" if test in ("", train) else "--"


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
    both = ((fixed, {}, "fixed step size"), (tuned, step_sizes, r"tuned step size $\eta$"))
    for axes, (runs, sizes, words) in zip(flat, both, strict=True):
        for d in sorted(runs):
            values = runs[d].dropna()
            label = f"$d$ = {d}" + (rf", $\eta$ = {sizes[d]:g}" if d in sizes else "")
            axes.plot(values.index, values, color=colours[d], lw=1.5, label=label)
        axes.set_ylim(SHARE)
        title(axes, words)
        _beside(axes)
    flat[0].set_ylabel(r"$W_O^2$ recall")
    return sign(_over_training(figure, *flat), note)


def one_step(table: pd.DataFrame, note: str = "") -> Figure:
    """Figure 9: recall R_1 of the one-step estimate against d and against the number of batches.

    `table` has columns d, batches and recall; several rows of one (d, batches) are repetitions, drawn as their mean
    with their range as a band. d = inf means orthonormal embeddings: it has a curve but no place on an axis.
    """
    missing = {"d", "batches", "recall"} - set(table.columns)
    require(not missing, "table", "columns d, batches and recall", list(table.columns))
    figure, (left, right) = panels(1, 2, 4.0, 2.9, share_y=True)
    both = ((left, "d", "batches", "dimension $d$"), (right, "batches", "d", "number of batches"))
    for axes, x, curve, words in both:
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
    """The legend to the right of the panel, with the largest value on top, like the curves."""
    handles = axes.get_legend_handles_labels()[0][::-1]
    if handles:
        axes.legend(
            handles=handles, title=heading, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False,
            fontsize=TICK, title_fontsize=LABEL, handlelength=1.5,
        )  # fmt: skip
