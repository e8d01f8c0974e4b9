"""A prediction taken apart, as a picture: tokens on a line, an arc per head, and bars that add up.

An arc goes from a query to the key that its head attends to most, as wide as the attention. Beside it stands what the
ideal pairs contribute to its log-odds against the runner-up key. The bars are the largest terms of the logit by pair,
each from where the one before ends, then the others together, then the logit.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from induction_memory.probes.why import Attended, Reason
from induction_memory.shown_tokens import short
from induction_memory.views.figures.panels import FAINT, INK, LABEL, SMALL, TICK, panels, plain, sign, title

COLOURS = {"W_K1": "#7b4fa3", "W_K2": "#b8432f", "W_O2": "#1f7a3d", "W_F": "#2563a8", "signal": "#b8432f"}
BARS, BESIDE = 7, 3
"""The largest number of bars, and of tokens shown on either side of a token that has a part in the reason."""


def reason_figure(reason: Reason, pairs: pd.DataFrame, sentence: str) -> Figure:
    """The picture of one prediction at one step."""
    logit = pairs.loc[pairs["of"] == "logit"]
    first = reason.heads[0] if reason.heads else None
    mine = pairs["of"].eq(first.head) & pairs["query"].eq(first.query) if first else pairs["of"].isna()
    shown = [("logit of " + _shown(reason), logit, reason.logit)]
    if first is not None:
        shown.append(
            (f"log-odds of {first.head}: {first.key} over {first.rival or 'nothing'}", pairs.loc[mine], first.odds)
        )
    figure = Figure(figsize=(9.6, 4.9), layout="constrained", facecolor="white")
    rows = figure.subplot_mosaic([["line"] * 2, ["0", "1" if len(shown) > 1 else "0"]], height_ratios=(1, 1.15))
    _line(rows["line"], reason)
    for i, (name, table, total) in enumerate(shown):
        plain(rows[str(i)])
        title(rows[str(i)], name)
        _bars(rows[str(i)], table, total)
    return sign(figure, f"{sentence}. Held as observed: {', '.join(reason.held)}; remainder {reason.remainder:.1g}.")


def over_training(memories: pd.DataFrame, name: str) -> Figure:
    """The terms by memory at each step, and the head's signal and interference."""
    scores = [column for column in memories if column.endswith(("signal", "interference"))]
    figure, axes = panels(1, 2 if scores else 1, 4.8, 3.2)
    for axis, columns in zip(axes, ([c for c in memories if c not in scores], scores), strict=False):
        for column in columns:
            colour = COLOURS.get(column.split(" ")[-1], COLOURS.get(column, FAINT))
            dash = "--" if column == "direct" else "-"
            axis.plot(memories.index, memories[column], dash, color=colour, label=column, linewidth=1.6)
        axis.axhline(0, color=FAINT, linewidth=0.6)
        axis.set_xlabel("step")
        axis.legend(frameon=False, fontsize=TICK)
    axes[0].set_ylabel("logits")
    return sign(figure, name)


def _shown(reason: Reason) -> str:
    against = f" over {short(reason.against)}" if reason.against else ""
    return f"{short(reason.target)}{against} at position {reason.position}"


def _line(axes: Axes, reason: Reason) -> None:
    axes.set_axis_off()
    centres = {reason.position, *(p for one in reason.heads for p in (one.query, one.key, one.rival) if p)}
    n = len(reason.tokens)
    near = {q for p in centres for q in range(p - BESIDE, p + BESIDE + 1) if 1 <= q <= reason.position}
    listed = sorted(near) if reason.position > 40 else list(range(1, min(n, reason.position) + 1))
    place: dict[int, float] = {}
    x = 0.0
    for before, p in zip([0, *listed], listed, strict=False):
        if before and p > before + 1:
            axes.text(x, 0, "…", ha="center", va="center", color=FAINT)
            x += 1
        place[p] = x
        bold = "bold" if p in centres else "normal"
        axes.text(x, 0, short(reason.tokens[p - 1]), ha="center", va="center", fontsize=LABEL + 1,
                  family="DejaVu Sans Mono", color=INK, fontweight=bold, parse_math=False)  # fmt: skip
        if p in centres:
            axes.text(x, -0.42, str(p), ha="center", va="top", fontsize=SMALL, color=FAINT)
        x += 1
    axes.text(x + 0.4, 0, f"→ {short(reason.target)}  {reason.probability:.2f}", va="center", fontsize=LABEL + 1,
              color=INK, fontweight="bold", parse_math=False)  # fmt: skip
    for i, one in enumerate(reason.heads):
        _arc(axes, one, place, i)
    axes.set_xlim(-1.5, max(x + 5, 16))
    axes.set_ylim(-0.8, 3.2)


def _arc(axes: Axes, one: Attended, place: dict[int, float], number: int) -> None:
    colour = COLOURS.get("W_K1" if one.head.startswith("L1") else "W_K2", INK)
    start, end = place[one.query], place[one.key]
    high = min(2.0, 0.6 + 0.09 * abs(start - end)) + 0.25 * (number % 2)
    bend = 0.0 if start == end else 2 * high / abs(start - end)
    style = f"arc3,rad={min(bend, 1.2):.3f}"
    arrow = FancyArrowPatch((start, 0.45), (end, 0.45), connectionstyle=style, arrowstyle="-|>", mutation_scale=9,
                            linewidth=0.6 + 3 * one.weight, color=colour, alpha=0.8)  # fmt: skip
    axes.add_patch(arrow)
    words = f"{one.head} {one.weight:.2f}" + (f": {one.signal:+.1f} of {one.odds:+.1f}" if one.odds == one.odds else "")
    axes.text((start + end) / 2, 0.5 + min(1.6, 0.3 * abs(start - end)), words, ha="center", va="bottom",
              fontsize=SMALL, color=colour)  # fmt: skip


def _bars(axes: Axes, table: pd.DataFrame, total: float) -> None:
    top = table.loc[table["position"] > 0].head(BARS)
    rows = top.to_dict("records")
    ends = [row["path"].removesuffix(">out") for row in rows]
    names = [f"{end}: {short(row['input'])}→{short(row['output'])}" for end, row in zip(ends, rows, strict=True)]
    values: Sequence[float] = [*top["value"], table["value"].sum() - top["value"].sum(), total]
    names += ["others", "sum"]
    starts = np.concatenate([[0.0], np.cumsum(values[:-2]), [0.0]])
    colours = [*(COLOURS.get(row["memory"], FAINT) for row in rows), FAINT, INK]
    axes.barh(range(len(values)), values, left=starts, color=colours, height=0.7)
    for i, (start, value) in enumerate(zip(starts, values, strict=True)):
        axes.text(max(start, start + value), i, f" {value:+.2f}", va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(names)), names, fontsize=TICK, parse_math=False)
    axes.invert_yaxis()
    axes.axvline(0, color=FAINT, linewidth=0.6)
    axes.margins(x=0.15)
