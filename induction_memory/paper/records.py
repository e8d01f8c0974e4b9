"""The record of a run: the numbers behind the figures' curves and the paper's claims.

A record holds the configuration, the metrics of every training step, the memory recall at every stored step, and at the
last step attention, prediction and the shape of the memories. Claims read it through four methods: `curve`, `recalls`,
`recall` and `final`.

Records on the disk: one folder per run, with three files.

    record.json   configuration, command, seconds, fingerprint of the trajectory, numbers of the last step
    metrics.csv   one row per training step, without the norms of weights and gradients
    probes.csv    one row per stored step

The shipped folder of records is sealed: its file SHA256SUMS has the checksum of every file, in the format of `sha256sum
-c`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from induction_memory.errors import DamagedError, InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import write_file
from induction_memory.memory.recall import first_lasting
from induction_memory.paper import plan


class MissingRunError(InputError):
    """A run that has not been trained."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has not been trained")


@dataclass(frozen=True, eq=False)
class Record:
    """The numbers kept of one run."""

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
    """The measures of the last step."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of some of these, as "NAME over WHAT"."""

    @property
    def steps(self) -> int:
        return self.config.train.steps

    def curve(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a metric, where it was measured."""
        self._reads("metrics")
        values = self.metrics[column].to_numpy(dtype=float)
        return self.metrics["step"].to_numpy()[np.isfinite(values)], values[np.isfinite(values)]

    def recalls(self, name: str) -> pd.Series:
        """A recall at every stored step."""
        self._reads(*(f"row {row}" for row in range(len(self.probes))))
        return pd.Series(self.probes[name])

    def recall(self, name: str, step: int | None = None) -> float:
        """A recall at the stored step nearest to `step`, by default at the last."""
        row = len(self.probes) - 1 if step is None else int(np.abs(self.probes.index.to_numpy() - step).argmin())
        self._reads(f"row {row}")
        return float(self.probes[name].to_numpy()[row])

    def final(self, name: str) -> float:
        """A number of the last step."""
        self._reads("last")
        return self.last[name]

    def final_error(self, name: str) -> tuple[float, str]:
        """The standard error of a number of the last step, and what it is over; unknown if it was not measured."""
        self._reads("last")
        for key, error in self.errors.items():
            measure, _, over = key.partition(" over ")
            if measure == name:
                return error, over
        return float("nan"), ""

    def _reads(self, *parts: str) -> None:
        """Called before each read with the part that is read: "metrics", "last", "row 0" ..."""

    def accuracy(self, first: int | None = None, last: int | None = None) -> float:
        """Mean in-context accuracy of the fresh batches of the steps first..last; of the last twenty by default."""
        steps, values = self.curve("accuracy_in_context")
        end = self.metrics["step"].max() if last is None else last
        start = end - 19 if first is None else first
        return float(np.mean(values[(steps >= start) & (steps <= end)]))

    def mean_recall(self, name: str, until: int | None = None) -> float:
        """The mean of a recall over training, or until a step; stored steps are weighted by the time that they
        represent."""
        recalls = self.recalls(name).loc[:until]
        steps = recalls.index.to_numpy()
        return float(np.trapezoid(recalls.to_numpy(), steps) / (steps[-1] - steps[0]))

    def reaches(self, name: str, level: float) -> float:
        """First stored step from which a recall stays at the level or above; infinite if there is none."""
        recalls = self.recalls(name)
        first = first_lasting(recalls.to_numpy() >= level, recalls.index.to_numpy())
        return float(np.nan_to_num(first, nan=np.inf))


class Records(dict[str, Record]):
    """Records by name, and by preset over seeds."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__({record.name: record for record in records})

    def __missing__(self, name: str) -> Record:
        raise MissingRunError(name)

    def one(self, preset: str) -> Record:
        """The first repetition of a preset."""
        return self[f"{preset}-seed-0"]

    def of(self, preset: str) -> list[Record]:
        """Every repetition of a preset, at least one."""
        found = [record for name, record in self.items() if name.rpartition("-seed-")[0] == preset]
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


FOLDER = "records"
HEADS = f"{FOLDER}/heads"
"""Folder of the sealed tables behind docs/heads.md."""
FILES = ("record.json", "metrics.csv", "probes.csv")
SEALS = "SHA256SUMS"
DIGITS = 7


def write(record: Record, folder: Path) -> None:
    """Write a record to its own folder."""
    about = {
        "name": record.name,
        "command": record.command,
        "seconds": None if record.seconds is None else round(record.seconds),
        "fingerprint": record.fingerprint,
        "config": record.config.to_dict(),
        "last": {name: _rounded(value) for name, value in record.last.items()},
        "errors": {name: _rounded(value) for name, value in record.errors.items()},
    }
    write_file(folder / "metrics.csv", _csv(record.metrics, index=False))
    write_file(folder / "probes.csv", _csv(record.probes, index=True))
    write_file(folder / "record.json", json.dumps(about, indent=1) + "\n")


def read(folder: Path) -> Record:
    """The record in a folder."""
    try:
        about = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        metrics = pd.read_csv(folder / "metrics.csv")
        tables = pd.read_csv(folder / "probes.csv", index_col="step")
        last, errors = (
            {name: float("nan" if value is None else value) for name, value in about.get(part, {}).items()}
            for part in ("last", "errors")
        )
        config, seconds = RunConfig.from_dict(about["config"]), about["seconds"]
        spent = None if seconds is None else float(seconds)
        name, command, fingerprint = (about[field] for field in ("name", "command", "fingerprint"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedError(folder, f"no record of a run in {', '.join(FILES)}: {error!r}") from error
    return Record(name, config, command, spent, fingerprint, metrics, tables, last, errors)


def read_all(folder: Path) -> Records:
    """All records in a folder."""
    return Records([read(path.parent) for path in sorted(folder.glob("*/record.json"))])


def seal(folder: Path, files: Sequence[str]) -> None:
    """Write the checksums of some files in a folder."""
    write_file(folder / SEALS, "".join(f"{_checksum(folder / file)}  {file}\n" for file in files))


def broken_files(folder: Path, files: Sequence[str] | None = None) -> list[str]:
    """The files that are missing, unsealed or changed. `files` (by default all in the folder) and sealed ones count."""
    seals = folder / SEALS
    if files is None:
        files = [path.name for path in folder.glob("*") if path != seals]
    lines = seals.read_text(encoding="utf-8").splitlines() if seals.exists() else []
    sums = {file: checksum for checksum, _, file in (line.partition("  ") for line in lines)}
    there = {file: _checksum(folder / file) for file in {*files, *sums} if (folder / file).exists()}
    return sorted(file for file in {*files, *sums} if file not in there or sums.get(file) != there[file])


def seal_records(folder: Path) -> None:
    """Write the checksums of all records in a folder."""
    seal(folder, [path.relative_to(folder).as_posix() for path in sorted(folder.glob("*/*")) if path.name in FILES])


def broken_records(folder: Path) -> set[str]:
    """Names of the records in a sealed folder with a file that is missing or differs from its checksum."""
    files = [f"{path.parent.name}/{file}" for path in folder.glob("*/record.json") for file in FILES]
    return {file.split("/")[0] for file in broken_files(folder, files)}


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _rounded(value: float) -> float | None:
    return None if not np.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _csv(table: pd.DataFrame, index: bool) -> str:
    return table.dropna(axis="columns", how="all").to_csv(index=index, float_format=f"%.{DIGITS}g")
