"""A claim of the paper, and the table of verdicts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from induction_memory.reproduction.records import MissingRunError, Record, Records
from induction_memory.theory.checks import Check

DAGGER = "†"
HALF = 0.5
COLUMNS = ("claim", "figure", "measure", "value", "threshold", "verdict")

Measure = Callable[[Records], Iterator[Check]]
Row = tuple[str, int, str, float, str, str]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, why the thresholds are where they are, the measurement, and why it may fail."""

    name: str
    figure: int
    says: str
    reason: str
    measure: Measure
    if_not: str


CLAIMS: dict[str, Claim] = {}


def claim(figure: int, reason: str, if_not: str = "") -> Callable[[Measure], Measure]:
    """Add a claim: the docstring quotes the paper, the name is the function's with hyphens.

    The function yields one check per row. Between two checks it reads all the numbers of the later one, so that an
    audit can say where each number comes from. `if_not` explains a measure beyond its threshold in the runs that ship.
    """

    def add(measure: Measure) -> Measure:
        name, says = measure.__name__.replace("_", "-"), " ".join(str(measure.__doc__).split())
        CLAIMS[name] = Claim(name, figure, says, reason, measure, if_not)
        return measure

    return add


def check(records: Records, names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row per measurement: claim, figure, measure, value, threshold, verdict.

    The verdict is "holds", "does not hold", or "no run" where what it needs has not been trained.
    """
    chosen = [entry for entry in CLAIMS.values() if names is None or entry.name in names]
    return pd.DataFrame([row for entry in chosen for row in measured(entry, records)], columns=list(COLUMNS))


def measured(entry: Claim, records: Records) -> Iterator[Row]:
    """The rows of one claim, each measured when it is asked for."""
    try:
        for found in entry.measure(records):
            verdict = "holds" if found.verdict else "does not hold"
            yield entry.name, entry.figure, found.statement, found.measured, _bound(found), verdict
    except MissingRunError as missing:
        yield entry.name, entry.figure, str(missing), np.nan, "", "no run"


def later(found: Check) -> Check:
    """A measure that was added after a first look at the runs, marked so."""
    return replace(found, statement=f"{found.statement} {DAGGER}")


def mean_recall_at(runs: Sequence[Record], name: str, step: int | None) -> float:
    """Mean over runs of a recall at a step."""
    return float(np.mean([run.recall(name, step) for run in runs]))


def called(memory: str) -> str:
    """A recall's name as the measures write it."""
    return "W_K1 (t < 64)" if memory == "W_K1_first64" else memory


def _bound(found: Check) -> str:
    bound = f"{found.predicted:.3g}"
    return f"{bound} {found.tolerance}" if "±" in found.tolerance else f"{found.tolerance} {bound}"
