"""Memories as matrices of scores, in the style of the paper's Figure 7.

The cell in column i and row j is v_j^T W u_i. Boxes are around the pairs of the ideal memory W_* = sum of v_j u_i^T.
The largest other scores have rings and are named below the map. Panels of one memory share a colour scale, which ends
at a strong pair, so that a few very strong pairs do not hide the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from induction_memory.errors import require
from induction_memory.shown_tokens import short
from induction_memory.views.figures.panels import FAINT, INK, SMALL, TICK, panels, sign, title

STRONG = 75
"""The colour scale ends at this percentile of the sizes of the stored pairs."""
NAMED = 3  # most unexpected scores per panel
SIDE, LARGE = 3.9, 5.6  # inches per panel; larger if there are only one or two
MOST_NAMES = 100  # an axis with more names shows only some


@dataclass(frozen=True, eq=False)
class Scores:
    """One memory at one step."""

    memory: str
    title: str
    table: pd.DataFrame
    """v_j^T W u_i: one row per input i, one column per output j, as `score_matrix` returns it."""
    ideal: Bool[np.ndarray, "input output"]
    """The pairs that the ideal memory stores."""

    def __post_init__(self):
        require(self.ideal.shape == self.table.shape, "ideal", f"pairs of shape {self.table.shape}", self.ideal.shape)

    @property
    def boxed(self) -> Bool[np.ndarray, "input output"]:
        """The ideal pairs, if each input has at most one: the bigrams of W_F would box everything."""
        return self.ideal & (self.ideal.sum(1) <= 1).all()

    @property
    def of_positions(self) -> bool:
        return self.memory.startswith("W_K1")

    def unexpected(self, strong: float, n: int = NAMED) -> list[tuple[int, int]]:
        """Places (input, output) of the largest scores outside the ideal pairs, above half of a strong pair's score.

        Keys later than the query are left out, because no head can attend to them.

        >>> table = pd.DataFrame([[5.0, 0.1], [4.0, 3.0]], ["a", "b"], ["a", "b"])
        >>> Scores("mine", "", table, np.eye(2, dtype=bool)).unexpected(strong=5.0)
        [(1, 0)]
        """
        if not self.boxed.any():
            return []
        elsewhere = np.where(self.ideal, -np.inf, self.table.to_numpy())
        if self.of_positions:
            elsewhere[self.table.index.to_numpy()[:, None] > self.table.columns.to_numpy()] = -np.inf
        order = np.argsort(-elsewhere, axis=None, kind="stable")[:n]
        places = [tuple(map(int, np.unravel_index(place, elsewhere.shape))) for place in order]
        return [(i, j) for i, j in places if elsewhere[i, j] > strong / 2]

    @property
    def strength(self) -> float:
        """The end of the colour scale: the score of a strong pair, never zero."""
        values = self.table.to_numpy()
        return float(np.percentile(np.abs(values[self.boxed] if self.boxed.any() else values), STRONG)) or 1.0


def strengths(maps: Sequence[Scores]) -> dict[str, float]:
    """The end of each memory's colour scale: the largest over its maps."""
    return {one.memory: max(other.strength for other in maps if other.memory == one.memory) for one in maps}


def memories(maps: Sequence[Scores], columns: int = 4, note: str = "") -> Figure:
    """The maps in rows of `columns`."""
    require(len(maps) > 0, "maps", "at least one", len(maps))
    across, limits = min(columns, len(maps)), strengths(maps)
    side = LARGE if len(maps) <= 2 else SIDE
    figure, flat = panels(-(-len(maps) // across), across, side, side)
    for axes in flat[len(maps) :]:
        axes.remove()
    for axes, one in zip(flat, maps, strict=False):
        limit = limits[one.memory]
        image = axes.imshow(one.table.to_numpy().T, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        bar = figure.colorbar(image, ax=axes, shrink=0.72, pad=0.03, aspect=22, extend="both")
        bar.ax.tick_params(labelsize=SMALL, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        axes.spines[:].set_visible(False)
        title(axes, one.title)
        cell = 72 * 0.8 * side / max(one.table.shape)  # points
        _mark(axes, one, cell, limit)
        kind = "position" if one.of_positions else "token"
        axes.set_xlabel(f"input {kind} $i$\n{_named(one, limit)}".rstrip())
        axes.set_ylabel(f"output {kind} $j$")
        for axis, names in ((axes.xaxis, one.table.index), (axes.yaxis, one.table.columns)):
            _tick(axis, [short(str(name)) for name in names], cell)
    stated = f"boxes: pairs to store; colours end at the {STRONG}th percentile of their sizes"
    return sign(figure, "; ".join(filter(None, (note, stated))))


def _mark(axes: Axes, one: Scores, cell: float, limit: float) -> None:
    """Boxes at the stored pairs, if a cell is large enough, and rings at the unexpected scores."""
    if cell >= 2 and one.boxed.any():
        inputs, outputs = np.nonzero(one.boxed)
        size, line = (cell - 0.4) ** 2, float(np.clip(cell / 9, 0.3, 1.0))
        axes.scatter(inputs, outputs, s=size, marker="s", facecolors="none", edgecolors=INK, linewidths=line)
    for i, j in one.unexpected(limit):
        axes.scatter(i, j, s=max(2 * cell, 7.0) ** 2, marker="o", facecolors="none", edgecolors=INK, linewidths=0.9)


def _named(one: Scores, limit: float) -> str:
    """The line under a map that names its unexpected scores, as surgery names pairs."""
    rows, columns, values = one.table.index, one.table.columns, one.table.to_numpy()
    places = one.unexpected(limit)
    shown = [f"{short(str(rows[i]))}->{short(str(columns[j]))} {values[i, j]:.1f}" for i, j in places]
    return f"unexpected: {', '.join(shown)}".replace("$", r"\$") if shown else ""


def _tick(axis: Axis, names: Sequence[str], cell: float) -> None:
    """All names if they fit, otherwise some, at round numbers."""
    if len(names) <= MOST_NAMES:
        axis.set_ticks(np.arange(len(names)), names)
        size = float(np.clip(0.8 * cell, 2.0, TICK))
        for text in axis.get_ticklabels():
            text.set(fontsize=size, family="DejaVu Sans Mono", parse_math=False, color=INK)
        axis.set_tick_params(length=0, pad=1)
    else:
        axis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda at, _: names[int(at)] if 0 <= at < len(names) else ""))
        axis.set_tick_params(colors=FAINT)
