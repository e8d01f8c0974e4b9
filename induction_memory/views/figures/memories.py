"""Figure 7: the associative memories that W_K^1, W_K^2 and W_O^2 hold, as matrices of scores.

With the target memory W_* = sum_i v_i u_i^T, the cell in row j and column i is v_j^T W u_i; what is stored stands on
the diagonal:

    W_K^1   p_j^T W_K^1 p_{i-1}                  positions, from the first that has a predecessor
    W_K^2   w_E(j)^T W_K^2 W_O^1 W_V^1 w_E(i)    tokens
    W_O^2   w_U(j)^T W_O^2 W_V^2 w_E(i)          tokens
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from induction_memory.errors import require
from induction_memory.views.figures.panels import FAINT, SMALL, TICK, panels, sign, title

STRONG = 75
"""The colours end at this percentile of the diagonal's sizes: a few very strong pairs do not hide the others."""


def memories(
    W_K1: Float[np.ndarray, "j i"],
    W_K2: Float[np.ndarray, "vocab vocab"],
    W_O2: Float[np.ndarray, "vocab vocab"],
    characters: Sequence[str],
    note: str = "",
) -> Figure:
    """The three matrices of scores v_j^T W u_i. W_K1's first row and column are position 1, counted from 0."""
    require(len(characters) == len(W_K2), "characters", f"{len(W_K2)}, one per row of W_K2", len(characters))
    require(W_K1.shape[0] == W_K1.shape[1], "W_K1", "a square matrix", W_K1.shape)
    figure, flat = panels(1, 3, 3.8, 4.0)
    places = (0.5, len(W_K1) + 0.5, len(W_K1) + 0.5, 0.5)
    tokens = (-0.5, len(W_K2) - 0.5, len(W_K2) - 0.5, -0.5)
    for axes, scores, extent, words, across, down in (
        (flat[0], W_K1, places, r"$W_K^1$:  $p_j^\top W_K^1\, p_{i-1}$", "position $i$", "position $j$"),
        (flat[1], W_K2, tokens, r"$W_K^2$:  $w_E(j)^\top W_K^2\, w_1(i)$", "token $i$", "token $j$"),
        (flat[2], W_O2, tokens, r"$W_O^2$:  $w_U(j)^\top W_O^2 W_V^2\, w_E(i)$", "token $i$", "token $j$"),
    ):
        limit = strength(scores)
        image = axes.imshow(scores, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest", extent=extent)
        bar = figure.colorbar(image, ax=axes, shrink=0.72, pad=0.03, aspect=22, extend="both")
        bar.ax.tick_params(labelsize=SMALL, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        axes.spines[:].set_visible(False)
        axes.set(xlabel=across, ylabel=down)
        title(axes, words, pad=20)
    for axes in flat[1:]:
        _letters(axes, characters)
    stated = f"colours end at the {STRONG}th percentile of the diagonal"
    return sign(figure, "; ".join(filter(None, (note, stated))))


def strength(scores: Float[np.ndarray, "j i"]) -> float:
    """Where the colours end: a strong pair of the diagonal, and never zero."""
    return float(np.percentile(np.abs(np.diagonal(scores)), STRONG)) or 1.0


def _letters(axes: Axes, characters: Sequence[str]) -> None:
    """Ticks where the capitals and the small letters begin, and a line along each kind."""
    runs = {"capitals": str.isupper, "lowercase": str.islower}
    ticks = {0, len(characters) - 1}
    for name, kind in runs.items():
        held = [i for i, character in enumerate(characters) if kind(character)]
        if not held:
            continue
        first, last = held[0], held[-1]
        ticks.add(first)
        line = {"color": FAINT, "lw": 1.6, "clip_on": False, "solid_capstyle": "butt"}
        middle, above = (first + last) / 2, axes.get_xaxis_transform()
        axes.plot([first - 0.4, last + 0.4], [1.015, 1.015], transform=above, **line)
        axes.text(middle, 1.025, name, transform=above, ha="center", va="bottom", fontsize=TICK, color=FAINT)
        axes.plot([1.015, 1.015], [first - 0.4, last + 0.4], transform=axes.get_yaxis_transform(), **line)
    shown = sorted(ticks)
    axes.set_xticks(shown)
    axes.set_yticks(shown)
