"""A measurement of a statement of the paper: a value with its error, the interval where it should lie, and a verdict.

It holds if the value is inside the interval by at least its error, does not hold if it is outside by more, and is
undecided in between. Both the claims about trained runs and the checks of the theory consist of such measurements. The
error is half of a 95 % interval (`claims/estimate.py`), and 0 for exact computations.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from induction_memory.field_docs import field_docs

Verdict = Literal["holds", "undecided", "does not hold", "no run"]
VERDICTS: tuple[Verdict, ...] = ("no run", "does not hold", "undecided", "holds")
"""The worst verdict first."""


Slip = Literal["", "printed", "setting", "beyond"]
"""`printed`: an error of the text. `setting`: true where the paper states it, but not in the setting of its figures.
`beyond`: a finding of ours about what the paper simplifies.
"""


@dataclass(frozen=True)
class Estimate:
    """A value, half of its 95 % interval, and the replicates of that interval (seeds, draws ...)."""

    value: float
    error: float
    over: str

    def __sub__(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value - other.value, math.hypot(self.error, other.error), self.over)

    def __truediv__(self, other: "Estimate") -> "Estimate":
        """The quotient; errors are propagated to first order."""
        if other.value == 0:
            return Estimate(math.nan, math.nan, self.over)
        value = self.value / other.value
        return Estimate(value, math.hypot(self.error, value * other.error) / abs(other.value), self.over)


def known(value: float) -> Estimate:
    """A number without an error, such as a count."""
    return Estimate(value, 0.0, "")


@field_docs
@dataclass(frozen=True)
class Measurement:
    """One row: a measured value, its error, and the interval where it should lie."""

    statement: str
    found: Estimate
    predicted: float
    """The bound, or the centre of the interval."""
    tolerance: str
    """"at least", "at most", or the allowed distance from the centre, in words."""
    low: float = -math.inf
    high: float = math.inf
    ours: bool = False
    """True for a stricter reading or a cause that the paper does not claim."""
    slip: Slip = ""
    """Why a statement of the paper is known not to hold; "" for every other. Another row may have the corrected one."""

    @property
    def measured(self) -> float:
        return self.found.value

    @property
    def verdict(self) -> Verdict:
        margin = min(self.found.value - self.low, self.high - self.found.value)
        if not math.isfinite(margin) or math.isnan(self.found.error):
            return "undecided"
        if margin >= self.found.error:
            return "holds"
        return "does not hold" if margin < -self.found.error else "undecided"

    @property
    def holds(self) -> bool:
        return self.verdict == "holds"

    @property
    def expected(self) -> bool:
        """False if a statement fails, or if a known slip of the paper holds."""
        return self.holds != bool(self.slip)

    @property
    def threshold(self) -> str:
        """The interval in words."""
        if self.tolerance in ("at least", "at most"):
            return f"{self.tolerance} {self.predicted:.3g}"
        return f"{self.predicted:.3g} {self.tolerance}"


def at_least(statement: str, bound: float, found: Estimate | float) -> Measurement:
    """Holds when the measured value reaches the bound."""
    return Measurement(statement, _estimate(found), bound, "at least", low=bound)


def at_most(statement: str, bound: float, found: Estimate | float) -> Measurement:
    """Holds when the measured value stays within the bound."""
    return Measurement(statement, _estimate(found), bound, "at most", high=bound)


def near(statement: str, centre: float, found: Estimate | float, width: float) -> Measurement:
    """Holds when the measured value is within a distance of the predicted one."""
    return _around(statement, centre, found, width, f"± {width:.3g}")


def within(statement: str, predicted: float, found: Estimate | float, relative: float) -> Measurement:
    """Holds when the measured value is within a relative distance of the predicted one."""
    return _around(statement, predicted, found, relative * abs(predicted), f"± {relative:.3g} relative")


def sampled(statement: str, predicted: float, found: float, error: float) -> Measurement:
    """Holds when a mean over random draws is within four standard errors of the predicted value."""
    return _around(statement, predicted, found, 4 * error, f"± 4 standard errors of {error:.2g}")


def known_slip(row: Measurement, kind: Slip = "printed") -> Measurement:
    """A statement that is known not to hold as the paper prints it, in another setting, or beyond its assumptions."""
    return replace(row, slip=kind)


def _around(statement: str, centre: float, found: Estimate | float, width: float, tolerance: str) -> Measurement:
    return Measurement(statement, _estimate(found), centre, tolerance, centre - width, centre + width)


def _estimate(found: Estimate | float) -> Estimate:
    return found if isinstance(found, Estimate) else known(found)
