"""A grid of attention maps over one sequence, heads or steps or runs side by side; `maps` says how each is drawn."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure

from induction_memory.figures.maps import OTHER, RIGHT, Panel, grid

__all__ = ["OTHER", "RIGHT", "attention_figure"]


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
    n = len(tokens)
    right, other = (np.zeros((n, n), dtype=bool) if boxes is None else boxes for boxes in (right, other))
    triggers, outputs = (np.zeros(n, dtype=bool) if marked is None else marked for marked in (triggers, outputs))

    def panel(i: int, j: int) -> Panel:
        title = columns[j] if columns and i == 0 else ""
        return Panel(title, maps[i][j], tokens, right, other, triggers, outputs)

    return grid([[panel(i, j) for j in range(len(maps[i]))] for i in range(len(maps))], rows)
