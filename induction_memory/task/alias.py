"""Walker's alias tables: one draw from any of many distributions by two look-ups.

A distribution p over N outcomes is cut into N columns of equal mass 1/N. Column c holds outcome c with probability
accept[c] and another outcome, alias[c], with the rest. With u uniform in [0, N), c = floor(u) and f = u - c,

    outcome = c if f < accept[c] else alias[c].

An outcome of probability zero has accept 0 and is the alias of no column: it is never drawn.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class AliasTable:
    """The tables of several distributions, flattened: row r has the entries `r * size + column`."""

    size: int
    """N, the number of outcomes."""
    accept: Float[np.ndarray, " entries"]
    """Probability that a column yields its own outcome."""
    alias: Int[np.ndarray, " entries"]
    """The outcome that it yields otherwise."""

    def draw(self, row: Int[np.ndarray, "*shape"], uniform: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """One outcome per entry of `row`, drawn from that row's distribution with a uniform number in [0, 1)."""
        column = np.empty(row.shape, dtype=np.int64)
        fraction = split_uniform(uniform.copy(), self.size, column)
        entry = row * self.size + column
        return np.where(fraction < self.accept[entry], column, self.alias[entry])


def split_uniform(
    uniform: Float[np.ndarray, "*shape"], size: int, column: Int[np.ndarray, "*shape"]
) -> Float[np.ndarray, "*shape"]:
    """Split u * size into its integer part, written to `column`, and its fractional part, left in `uniform`."""
    uniform *= size
    np.copyto(column, uniform, casting="unsafe")
    uniform -= column
    return uniform


def alias_table(probabilities: Float[np.ndarray, "rows outcome"]) -> AliasTable:
    """Tables of the rows of `probabilities` (Vose's algorithm). A row of zeros may not be drawn from."""
    rows, size = probabilities.shape
    accept = np.ones((rows, size))
    alias = np.tile(np.arange(size), (rows, 1))
    for row in range(rows):
        mass = probabilities[row] * size
        small = [i for i in range(size) if mass[i] < 1]
        large = [i for i in range(size) if mass[i] >= 1]
        while small and large:
            low, high = small.pop(), large[-1]
            accept[row, low], alias[row, low] = mass[low], high
            mass[high] -= 1 - mass[low]
            if mass[high] < 1:
                small.append(large.pop())
    return AliasTable(size, accept.ravel(), alias.ravel())
