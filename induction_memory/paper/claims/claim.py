"""A claim of the paper, its measurements, and the table of verdicts. The claim says where its thresholds come from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from induction_memory.field_docs import field_docs
from induction_memory.paper.records import MissingRunError, Records
from induction_memory.paper.verdicts import Measurement, Verdict

DAGGER = "†"
HALF = 0.5
COLUMNS = ("claim", "figure", "measure", "whose", "value", "half_interval", "over", "threshold", "verdict")


def later(row: Measurement) -> Measurement:
    """Mark a measure that was added after a first look at the runs."""
    return replace(row, statement=f"{row.statement} {DAGGER}")


def ours(row: Measurement) -> Measurement:
    """Mark a measure that the paper does not claim."""
    return replace(row, ours=True)


Measure = Callable[[Records], Iterator[Measurement]]
Row = tuple[str, int, str, str, float, float, str, str, Verdict]


@field_docs
@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the reason for its thresholds, and the measurement."""

    name: str
    figure: int
    says: str
    reason: str
    measure: Measure


CLAIMS: dict[str, Claim] = {}


def claim(figure: int, reason: str) -> Callable[[Measure], Measure]:
    """Add a claim: the docstring quotes the paper, the name is the function's with hyphens.

    The function yields its rows. It reads all numbers of a row after yielding the row before, so that an audit can tell
    the source of each number.
    """

    def add(measure: Measure) -> Measure:
        name, says = measure.__name__.replace("_", "-"), " ".join(str(measure.__doc__).split())
        CLAIMS[name] = Claim(name, figure, says, reason, measure)
        return measure

    return add


def check(records: Records, names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per measurement: claim, figure, measure, whose, value, half_interval, over, threshold, verdict.

    The verdict is "holds", "undecided", "does not hold", or "no run" if a run has not been trained. `whose` is "paper",
    or "ours" if the paper does not claim it. `half_interval` is half of a 95 % interval.

    >>> from induction_memory.paper.records import Records
    >>> check(Records([]), ["two-layers"])[["measure", "verdict"]].values.tolist()
    [['figure-2-fixed-seed-0 has not been trained', 'no run']]
    """
    chosen = [entry for entry in CLAIMS.values() if names is None or entry.name in names]
    return pd.DataFrame([row for entry in chosen for row in measured(entry, records)], columns=list(COLUMNS))


def measured(entry: Claim, records: Records) -> Iterator[Row]:
    """The rows of one claim, measured one by one."""
    try:
        for row in entry.measure(records):
            found, whose = row.found, "ours" if row.ours else "paper"
            about = (row.statement, whose, found.value, found.error, found.over, row.threshold, row.verdict)
            yield entry.name, entry.figure, *about
    except MissingRunError as missing:
        yield entry.name, entry.figure, str(missing), "", np.nan, np.nan, "", "", "no run"


def called(memory: str) -> str:
    """A recall's name in the measures."""
    return "W_K1 (t < 64)" if memory == "W_K1_first64" else memory
