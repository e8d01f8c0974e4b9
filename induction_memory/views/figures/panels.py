"""Parts of the paper's figures: a grid of plain panels, legends outside the panels, a note at the foot."""

import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

INK, FAINT = "#1f2328", "#656d76"
TITLE, LABEL, TICK, SMALL = 9.5, 9, 8, 7
"""Sizes in points."""


def panels(
    rows: int, columns: int, width: float | int, height: float | int, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of rows x columns panels of this size in inches, listed row by row; rows share an axis on request."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if share_y else False)
    for axes in (flat := list(grid.flat)):
        plain(axes)
    return figure, flat


def plain(axes: Axes) -> None:
    """No spine above or to the right, small type."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TICK)
    axes.xaxis.label.set_fontsize(LABEL)
    axes.yaxis.label.set_fontsize(LABEL)


def title(axes: Axes, words: str, pad: float | int = 6) -> None:
    """The panel's title; names of matrices in the code, such as W_O2, become the paper's symbols."""
    words = re.sub(r"\bW_([KOQVF])(\d)\b", r"$W_\1^\2$", words)
    axes.set_title(words, fontsize=TITLE, color=INK, pad=pad)


def legend_below(axes: Axes, handles: Sequence[Artist], columns: int = 2) -> None:
    """A panel's legend, under its axis label."""
    if handles:
        figure = axes.get_figure()
        assert figure is not None
        below = axes.transAxes + ScaledTranslation(0, -0.45, figure.dpi_scale_trans)
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), bbox_transform=below, ncols=columns,
            frameon=False, fontsize=TICK, handlelength=1.8, columnspacing=1.2, labelspacing=0.35, borderaxespad=0.0,
        )  # fmt: skip


def legend_above(figure: Figure, handles: Sequence[Artist]) -> None:
    """One legend for the whole figure, above its panels."""
    if handles:
        figure.legend(
            handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=LABEL,
            handlelength=1.8, columnspacing=1.6,
        )  # fmt: skip


def sign(figure: Figure, note: str) -> Figure:
    """The figure with a small grey note at the foot."""
    if note:
        letters = int(figure.get_figwidth() * 72 / (0.55 * SMALL))
        figure.supxlabel("\n".join(textwrap.wrap(note, letters)), fontsize=SMALL, color=FAINT)
    return figure


def sequential(count: int) -> np.ndarray:
    """`count` colours from light to dark along one colour map, none too pale to see."""
    return matplotlib.colormaps["viridis_r"](np.linspace(0.12, 1.0, count))


def drawn(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """The figure as png, pdf or svg, without a date and random names, so that the same figure gives the same bytes."""
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "figure"}):
        figure.savefig(file, format=kind, dpi=dpi, metadata=undated)
    return file.getvalue()
