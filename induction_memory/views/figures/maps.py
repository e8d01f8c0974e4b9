"""Attention maps in the style of the paper's Figures 2 and 11, each over its own sequence.

Each row is a query, each column a key; darker means more attention. In the row of a query z_t, keys after an earlier
occurrence of its token (z_{s-1} = z_t for s <= t) are marked: a red square if the key is the right output of a trigger,
otherwise a green ring. On the axes triggers are bold, their outputs bold and underlined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text

from induction_memory.errors import require
from induction_memory.shown_tokens import short
from induction_memory.views.figures.panels import FAINT, INK, SMALL, TITLE
from induction_memory.views.light_maps import BEYOND, OTHER, OUTPUT, RIGHT, TRIGGER, WORDS, legend

INCHES_A_TOKEN, SMALLEST, LARGEST = 0.13, 2.4, 9.0
WIDE, TALL, LESS = 16.0, 12.0, 1.6  # inches: all maps together, and the side of a map if they are too many for that


@dataclass(frozen=True, eq=False)
class Panel:
    """One map and its sequence."""

    title: str
    pattern: Float[np.ndarray, "query key"]
    tokens: Sequence[str]
    right: Bool[np.ndarray, "query key"]
    """Red squares: keys after an earlier occurrence of the query that are the right output of a trigger."""
    other: Bool[np.ndarray, "query key"]
    """Green rings: the other keys after an earlier occurrence of the query."""
    triggers: Bool[np.ndarray, " pos"]
    outputs: Bool[np.ndarray, " pos"]
    words: Mapping[str, str] = field(default_factory=lambda: WORDS)

    def __post_init__(self):
        n = len(self.tokens)
        for name in ("pattern", "right", "other"):
            shape = getattr(self, name).shape
            require(shape == (n, n), f"panel.{name}", f"{n} queries and keys, one per token", shape)
        for name in ("triggers", "outputs"):
            shape = getattr(self, name).shape
            require(shape == (n,), f"panel.{name}", f"{n} positions, one per token", shape)

    @property
    def colours(self) -> list[str]:
        """The colour of each token on the axes."""
        marked = zip(self.triggers, self.outputs, strict=True)
        return [TRIGGER if trigger else OUTPUT if output else INK for trigger, output in marked]


def induction_maps(panels: Sequence[Panel], columns: int, note: str = "") -> Figure:
    """The panels in rows of `columns`, each with its title."""
    require(len(panels) > 0, "panels", "at least one map", len(panels))
    require(columns > 0, "columns", "at least one", columns)
    return grid([panels[i : i + columns] for i in range(0, len(panels), columns)], note=note)


def grid(lines: Sequence[Sequence[Panel]], rows: Sequence[str] = (), note: str = "") -> Figure:
    """Lines of maps of equal size, with `rows` as the names of the lines; one scale and one legend for all."""
    every = [panel for line in lines for panel in line]
    width, lengths = max(map(len, lines)), [len(panel.tokens) for panel in every]
    largest = min(LARGEST, max(LESS, min(WIDE / width, TALL / len(lines))))
    side = min(max(INCHES_A_TOKEN * max(lengths), SMALLEST), largest)
    letters = max(len(short(token)) for panel in every for token in panel.tokens)
    ticks = 0.1 + 0.022 * _points(side, min(lengths)) * max(1.0, 0.62 * letters)  # room for the tokens
    handles = _handles(every)
    left, beside = 0.18 + 0.24 * bool(rows) + ticks, 0.5
    headings = [0.3 * any(panel.title for panel in line) for line in lines]
    tops = [0.12 + sum(headings[: i + 1]) + i * (side + ticks + 0.08) for i in range(len(lines))]
    below = 0.2 + 0.28 * bool(handles) + 0.18 * bool(note)
    size = (left + width * side + (width - 1) * (ticks + 0.1) + beside, tops[-1] + side + ticks + 0.08 + below)

    def place(x: float, y: float, w: float, h: float) -> tuple[float, float, float, float]:
        """Convert a box in inches, measured from the upper left corner, to the figure's coordinates."""
        return x / size[0], 1 - (y + h) / size[1], w / size[0], h / size[1]

    with matplotlib.rc_context({"font.family": ["DejaVu Sans"], "svg.fonttype": "path"}):
        figure = Figure(figsize=size, facecolor="white")
        images = []
        for i, (line, y) in enumerate(zip(lines, tops, strict=True)):
            for j, panel in enumerate(line):
                axes = figure.add_axes(place(left + j * (side + ticks + 0.1), y, side, side))
                images.append(_draw(axes, panel))
                _label(axes, panel, _points(side, len(panel.tokens)))
                axes.set_title(panel.title, fontsize=TITLE, color=INK, pad=6, parse_math=False)
                if i == len(lines) - 1 or j >= len(lines[i + 1]):
                    axes.set_xlabel("key", fontsize=7.5, color=FAINT, labelpad=1.5)
                if j == 0:
                    axes.set_ylabel("query", fontsize=7.5, color=FAINT, labelpad=3)
            if rows:
                middle = place(0.2, y + side / 2, 0.0, 0.0)[:2]
                figure.text(*middle, rows[i], rotation=90, ha="center", va="center", fontsize=10, color=INK)
        bar = figure.add_axes(place(size[0] - beside + 0.12, tops[0], 0.09, min(side, 1.6)))
        scale = figure.colorbar(images[0], cax=bar, ticks=[0, 0.5, 1])
        scale.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.tick_params(length=0, labelsize=7, colors=FAINT, pad=2)
        if handles:
            foot = place(0.0, size[1] - 0.18 * bool(note), 1.0, 0.0)[1]
            key = figure.legend(
                handles=handles, loc="lower center", bbox_to_anchor=(0.5, foot), ncols=2 if size[0] < 6 else 4,
                frameon=False, fontsize=7.5, labelcolor=INK, handlelength=1.1, handletextpad=0.5, columnspacing=1.4,
                borderaxespad=0.2,
            )  # fmt: skip
            for text, handle in zip(key.get_texts(), handles, strict=True):
                if handle.get_color() in (TRIGGER, OUTPUT):
                    _mark(text, str(handle.get_color()))
        if note:
            figure.text(0.5, 0.05 / size[1], note, ha="center", va="bottom", fontsize=SMALL, color=FAINT)
    return figure


def _points(side: float, n: int) -> float:
    """The font size of the tokens on the axes: most of a cell."""
    return float(np.clip(0.78 * 72 * side / n, 2.0, 9.0))


def _draw(axes: Axes, panel: Panel):
    n = len(panel.tokens)
    beyond = np.triu(np.ones((n, n), dtype=bool), 1)
    colours = matplotlib.colormaps["Blues"].with_extremes(bad=BEYOND)
    image = axes.imshow(np.ma.array(panel.pattern, mask=beyond), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    line = float(np.clip(40 / n, 0.5, 1.5))
    style: dict[str, Any] = {"fill": False, "linewidth": line, "zorder": 3, "clip_on": False}
    for query, key in np.argwhere(panel.other):
        axes.add_patch(Circle((key, query), 0.5, edgecolor=OTHER, **style))
    for query, key in np.argwhere(panel.right):
        axes.add_patch(Rectangle((key - 0.5, query - 0.5), 1, 1, edgecolor=RIGHT, **style))
    for spine in axes.spines.values():
        spine.set(color="#d0d7de", linewidth=0.6)
    return image


def _label(axes: Axes, panel: Panel, points: float) -> None:
    shown = [short(token) for token in panel.tokens]
    axes.xaxis.tick_bottom()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(np.arange(len(shown)), shown)
        for text, colour in zip(axis.get_ticklabels(), panel.colours, strict=True):
            text.set(fontsize=points, family="DejaVu Sans Mono", parse_math=False)
            _mark(text, colour)
    if max(map(len, shown)) > 1:
        axes.tick_params(axis="x", labelrotation=90)
    axes.tick_params(length=0, pad=1.5)


def _mark(text: Text, colour: str) -> None:
    """Triggers are bold, outputs bold and underlined, each in its colour."""
    text.set(color=colour, fontweight="normal" if colour == INK else "bold")
    if colour == OUTPUT:
        size = float(text.get_fontsize())
        line = {"edgecolor": colour, "facecolor": "none", "linewidth": 0.1 * size, "clip_on": False}
        text.set_bbox({"boxstyle": lambda x, y, width, height, scale: Path([(x, y), (x + width, y)])} | line)


def _handles(panels: Sequence[Panel]) -> list[Line2D]:
    """A legend entry for each kind of box and of token that the panels hold."""
    kinds: dict[str, str] = {}
    for panel in panels:
        kinds |= legend(panel.right, panel.other, panel.triggers, panel.outputs, panel.words)
    marks = {"right": ("s", RIGHT), "other": ("o", OTHER), "trigger": ("", TRIGGER), "output": ("", OUTPUT)}
    return [
        Line2D([], [], marker=marker, color=colour, linestyle="", markersize=5, fillstyle="none", label=kinds[kind])
        for kind, (marker, colour) in marks.items()
        if kind in kinds
    ]


def attention_figure(
    maps: Sequence[Sequence[Float[np.ndarray, "query key"]]],
    tokens: Sequence[str],
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    right: Bool[np.ndarray, "query key"] | None = None,
    other: Bool[np.ndarray, "query key"] | None = None,
    triggers: Bool[np.ndarray, " pos"] | None = None,
    outputs: Bool[np.ndarray, " pos"] | None = None,
    words: Mapping[str, str] = WORDS,
) -> Figure:
    """A grid of attention maps over one sequence; `maps[i][j]` is in row i, column j.

    `rows` and `columns` are their titles, `right` and `other` the boxes, `triggers` and `outputs` the marked positions,
    `words` their legend.
    """
    n = len(tokens)
    right, other = (np.zeros((n, n), dtype=bool) if boxes is None else boxes for boxes in (right, other))
    triggers, outputs = (np.zeros(n, dtype=bool) if marked is None else marked for marked in (triggers, outputs))

    def panel(i: int, j: int) -> Panel:
        title = columns[j] if columns and i == 0 else ""
        return Panel(title, maps[i][j], tokens, right, other, triggers, outputs, words)

    return grid([[panel(i, j) for j in range(len(maps[i]))] for i in range(len(maps))], rows)
