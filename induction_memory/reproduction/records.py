"""The record of a run: what the figures' curves and the paper's claims are computed from.

A record holds the configuration, the metrics of every training step, the memory recall at every stored step, and at the
last step attention, prediction and the shape of the memories. Claims read it through four methods: `curve`, `recalls`,
`recall` and `final`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.memory.births import first_lasting
from induction_memory.reproduction import plan


class MissingRunError(InputError):
    """A run that has not been trained."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has not been trained")


@dataclass(frozen=True, eq=False)
class Record:
    """What is kept of one run."""

    name: str
    config: RunConfig
    command: str
    seconds: float | None
    fingerprint: str
    metrics: pd.DataFrame
    """One row per training step."""
    probes: pd.DataFrame
    """One row per stored step, one column per recall."""
    last: Mapping[str, float]
    """What was measured only at the last step."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of some of these, as "NAME over WHAT"."""

    @property
    def steps(self) -> int:
        return self.config.train.steps

    def curve(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a metric, where it was measured."""
        values = self.metrics[column].to_numpy(dtype=float)
        return self.metrics["step"].to_numpy()[np.isfinite(values)], values[np.isfinite(values)]

    def recalls(self, name: str) -> pd.Series:
        """A recall at every stored step."""
        return pd.Series(self.probes[name])

    def recall(self, name: str, step: int | None = None) -> float:
        """A recall at the stored step nearest to the given one; at the last by default."""
        return float(self.probes[name].to_numpy()[self.row(step)])

    def final(self, name: str) -> float:
        """A number of the last step."""
        return self.last[name]

    def final_error(self, name: str) -> tuple[float, str]:
        """The standard error of a number of the last step, and what it is over; unknown if it was not measured."""
        for key, error in self.errors.items():
            measure, _, over = key.partition(" over ")
            if measure == name:
                return error, over
        return float("nan"), ""

    def row(self, step: int | None) -> int:
        """The row of the stored step nearest to the given one; the last row by default."""
        return len(self.probes) - 1 if step is None else int(np.abs(self.probes.index.to_numpy() - step).argmin())

    def accuracy(self, first: int | None = None, last: int | None = None) -> float:
        """Mean in-context accuracy of the fresh batches of the steps first..last; of the last twenty by default."""
        steps, values = self.curve("accuracy_in_context")
        end = self.metrics["step"].max() if last is None else last
        start = end - 19 if first is None else first
        return float(np.mean(values[(steps >= start) & (steps <= end)]))

    def mean_recall(self, name: str, until: int | None = None) -> float:
        """The mean of a recall over training, or until a step, each stored step weighted by the time it stands for."""
        recalls = self.recalls(name).loc[:until]
        steps = recalls.index.to_numpy()
        return float(np.trapezoid(recalls.to_numpy(), steps) / (steps[-1] - steps[0]))

    def reaches(self, name: str, level: float) -> float:
        """First stored step from which a recall stays at the level or above; infinite if it does not."""
        recalls = self.recalls(name)
        first = first_lasting(recalls.to_numpy() >= level, recalls.index.to_numpy())
        return float(np.nan_to_num(first, nan=np.inf))


class Records(Mapping[str, Record]):
    """Records by name, and by preset over seeds."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = {record.name: record for record in records}

    def __getitem__(self, name: str) -> Record:
        if name not in self._records:
            raise MissingRunError(name)
        return self._records[name]

    def __contains__(self, name: object) -> bool:
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def one(self, preset: str) -> Record:
        """The first repetition of a preset."""
        return self[f"{preset}-seed-0"]

    def of(self, preset: str) -> list[Record]:
        """Every repetition of a preset, at least one."""
        found = [record for name, record in self._records.items() if name.rpartition("-seed-")[0] == preset]
        if not found:
            raise MissingRunError(f"{preset}-seed-0")
        return found


def after(earlier: pd.DataFrame, later: pd.DataFrame) -> pd.DataFrame:
    """The metrics of a run that continued from a stored step, together with those before that step."""
    before = earlier.loc[(earlier["step"] < later["step"].min()).to_numpy()]
    return pd.concat([before, later], ignore_index=True) if len(before) else later


def continued(earlier: Record, later: Record) -> Record:
    """The record of a run that continued from a stored step of another, together with the record before that step."""
    before = earlier.probes.loc[earlier.probes.index < later.probes.index.min()]
    spent = None if earlier.seconds is None or later.seconds is None else earlier.seconds + later.seconds
    metrics, probes = after(earlier.metrics, later.metrics), pd.concat([before, later.probes])
    return replace(later, metrics=metrics, probes=probes, seconds=spent)


def tuned_runs(records: Records, d: int) -> list[Record]:
    """All repetitions of Figure 8's run in dimension d with the step size that has the highest mean recall."""
    there = [name for name in plan.step_sizes(d).values() if f"{name}-seed-0" in records]
    if not there:
        raise MissingRunError(f"figure-8-d{d}-seed-0")
    return records.of(max(there, key=lambda name: np.mean([run.mean_recall("W_O2") for run in records.of(name)])))
