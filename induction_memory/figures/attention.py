"""Attention maps in the manner of the paper's Figure 2.

Each row is a query, each column a key; darker is more attention, nothing beyond the diagonal. A key is boxed in the row
of a query z_t when it follows an earlier occurrence of it, z_{s-1} = z_t for s <= t: red where it is the right output
of a trigger, green elsewhere. On the axes triggers and their outputs have colours of their own.
"""

from collections.abc import Sequence

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from induction_memory.figures.tokens import visible

RIGHT, OTHER = "#e5343d", "#2da44e"
TRIGGER, OUTPUT = "#8250df", "#d1242f"
INK, FAINT, BEYOND = "#1f2328", "#656d76", "#f2f3f5"
INCHES_A_TOKEN, SMALLEST, LARGEST = 0.13, 2.4, 9.0


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
) -> Figure:
    """A grid of attention maps over one sequence; `maps[i][j]` stands in row i, column j.

    `rows` and `columns` are their titles, `right` and `other` the boxes, `triggers` and `outputs` the marked positions.
    """
    n, height, width = len(tokens), len(maps), len(maps[0])
    nowhere = np.zeros((n, n), dtype=bool)
    right, other = (nowhere if boxes is None else boxes for boxes in (right, other))
    colours = [_colour(i, triggers, outputs) for i in range(n)]
    side = min(max(INCHES_A_TOKEN * n, SMALLEST), LARGEST)
    has_legend = bool(right.any() or other.any() or any(colour != INK for colour in colours))
    points = _points(side, n)
    ticks = 0.1 + 0.022 * points * max(1.0, 0.62 * max(len(visible(token)) for token in tokens))  # room for the tokens
    left, top = 0.18 + 0.24 * bool(rows) + ticks, 0.12 + 0.3 * bool(columns)
    below, beside = 0.2 + 0.28 * has_legend, 0.5
    size = (left + width * side + (width - 1) * (ticks + 0.1) + beside, top + height * (side + ticks + 0.08) + below)

    def place(x: float, y: float, w: float, h: float) -> tuple[float, float, float, float]:
        """Inches from the upper left corner, as the figure counts them."""
        return x / size[0], 1 - (y + h) / size[1], w / size[0], h / size[1]

    with matplotlib.rc_context({"font.family": ["DejaVu Sans"], "svg.fonttype": "path"}):
        figure = Figure(figsize=size, facecolor="white")
        images = []
        for i, line in enumerate(maps):
            for j, pattern in enumerate(line):
                x, y = left + j * (side + ticks + 0.1), top + i * (side + ticks + 0.08)
                axes = figure.add_axes(place(x, y, side, side))
                images.append(_draw(axes, pattern, right, other))
                _label(axes, tokens, colours, points)
                if i == 0 and columns:
                    axes.set_title(columns[j], fontsize=10, color=INK, pad=7, parse_math=False)
                if i == height - 1:
                    axes.set_xlabel("key", fontsize=7.5, color=FAINT, labelpad=1.5)
                if j == 0:
                    axes.set_ylabel("query", fontsize=7.5, color=FAINT, labelpad=3)
                    name = rows[i] if rows else ""
                    middle = place(0.2, y + side / 2, 0.0, 0.0)[:2]
                    figure.text(*middle, name, rotation=90, ha="center", va="center", fontsize=10, color=INK)
        bar = figure.add_axes(place(size[0] - beside + 0.12, top, 0.09, min(side, 1.6)))
        scale = figure.colorbar(images[0], cax=bar, ticks=[0, 0.5, 1])
        scale.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.tick_params(length=0, labelsize=7, colors=FAINT, pad=2)
        if has_legend:
            _legend(figure, right, other, colours)
    return figure


def _points(side: float, n: int) -> float:
    """The size of the tokens on the axes: most of a cell."""
    return float(np.clip(0.78 * 72 * side / n, 2.0, 9.0))


def _draw(axes: Axes, pattern: np.ndarray, right: np.ndarray, other: np.ndarray):
    n = len(pattern)
    beyond = np.triu(np.ones((n, n), dtype=bool), 1)
    colours = matplotlib.colormaps["Blues"].with_extremes(bad=BEYOND)
    image = axes.imshow(np.ma.array(pattern, mask=beyond), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    line = float(np.clip(40 / n, 0.5, 1.5))
    for boxes, colour in ((other, OTHER), (right, RIGHT)):
        for query, key in zip(*np.nonzero(boxes), strict=True):
            box = Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=line, zorder=3)
            box.set_clip_on(False)
            axes.add_patch(box)
    for spine in axes.spines.values():
        spine.set(color="#d0d7de", linewidth=0.6)
    return image


def _label(axes: Axes, tokens: Sequence[str], colours: Sequence[str], points: float) -> None:
    shown = [visible(token) for token in tokens]
    axes.xaxis.tick_bottom()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(np.arange(len(tokens)), shown)
        for text, colour in zip(axis.get_ticklabels(), colours, strict=True):
            text.set(color=colour, fontsize=points, family="DejaVu Sans Mono", parse_math=False)
            text.set_fontweight("normal" if colour == INK else "bold")
    if max(map(len, shown)) > 1:
        axes.tick_params(axis="x", labelrotation=90)
    axes.tick_params(length=0, pad=1.5)


def _colour(position: int, triggers: np.ndarray | None, outputs: np.ndarray | None) -> str:
    if triggers is not None and triggers[position]:
        return TRIGGER
    return OUTPUT if outputs is not None and outputs[position] else INK


def _legend(figure: Figure, right: np.ndarray, other: np.ndarray, colours: Sequence[str]) -> None:
    handles: list[Patch | Line2D] = []
    if right.any():
        handles.append(Patch(fill=False, edgecolor=RIGHT, label="after an earlier occurrence, the right output"))
    if other.any():
        handles.append(Patch(fill=False, edgecolor=OTHER, label="after an earlier occurrence"))
    for colour, label in ((TRIGGER, "trigger"), (OUTPUT, "its output")):
        if colour in colours:
            handles.append(Line2D([], [], marker="s", color=colour, linestyle="", markersize=4.5, label=label))
    narrow = figure.get_figwidth() < 6
    figure.legend(
        handles=handles, loc="lower center", ncols=2 if narrow else 4, frameon=False, fontsize=7.5, labelcolor=INK,
        handlelength=1.1, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
