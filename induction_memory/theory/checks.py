"""A check: one statement of the paper, what it predicts, what was measured, and whether the two agree.

`slip` marks a statement that is known not to hold as the paper prints it. A second check has the corrected statement.
A check is as expected if it is a statement that holds or a slip that fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

TINY = 1e-300
"""Stands for zero under a logarithm."""


@dataclass(frozen=True)
class Check:
    """One row of the table."""

    statement: str
    predicted: float
    measured: float
    tolerance: str
    verdict: bool
    slip: bool = False

    @property
    def expected(self) -> bool:
        """False if a statement fails, or if a known slip of the paper holds."""
        return self.verdict != self.slip


@dataclass(frozen=True)
class Result:
    """What one named check returns: its rows, and the tables its figure is drawn from."""

    checks: tuple[Check, ...]
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)


def within(statement: str, predicted: float, measured: float, relative: float, slip: bool = False) -> Check:
    """Holds when the measured value is within a relative distance of the predicted one."""
    verdict = bool(abs(measured - predicted) <= relative * abs(predicted))
    return Check(statement, predicted, measured, f"± {relative:.3g} relative", verdict, slip)


def near(statement: str, predicted: float, measured: float, absolute: float, slip: bool = False) -> Check:
    """Holds when the measured value is within an absolute distance of the predicted one."""
    verdict = bool(abs(measured - predicted) <= absolute)
    return Check(statement, predicted, measured, f"± {absolute:.3g}", verdict, slip)


def sampled(
    statement: str, predicted: float, measured: float, error: float, sigmas: float = 4.0, slip: bool = False
) -> Check:
    """Holds when a mean over random draws is within some standard errors of the predicted value."""
    verdict = bool(abs(measured - predicted) <= sigmas * error)
    return Check(statement, predicted, measured, f"± {sigmas:g} standard errors of {error:.2g}", verdict, slip)


def at_least(statement: str, bound: float, measured: float, slip: bool = False) -> Check:
    """Holds when the measured value reaches the bound."""
    return Check(statement, bound, measured, "at least", bool(measured >= bound), slip)


def at_most(statement: str, bound: float, measured: float, slip: bool = False) -> Check:
    """Holds when the measured value stays within the bound."""
    return Check(statement, bound, measured, "at most", bool(measured <= bound), slip)


def column(table: pd.DataFrame, name: str, **where: object) -> Float[np.ndarray, " row"]:
    """A column as numbers, of the rows whose other columns have the given values."""
    kept = np.ones(len(table), dtype=bool)
    for other, value in where.items():
        kept &= np.asarray(table[other] == value)
    return np.asarray(table[name], dtype=float)[kept]


def slope(x: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> float:
    """Least-squares slope of log y against log x: the power with which y grows."""
    return float(np.polyfit(np.log(x), np.log(np.maximum(y, TINY)), 1)[0])
