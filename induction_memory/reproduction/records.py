"""The record of a run: what the figures' curves and the paper's claims are computed from.

It holds the configuration, the metrics of every training step, the memory recall at every stored step, and attention,
prediction and the shape of the memories at the last. A record is small, so that those of all runs ship, while weights
ship for a few. On the disk it is a folder of three files:

    record.json   configuration, command, seconds, fingerprint of the trajectory, numbers of the last step
    metrics.csv   a row a training step
    probes.csv    a row a stored step
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.reproduction import plan
from induction_memory.task.sampler import sample, step_rng
from induction_memory.trajectory.folder import FolderSource
from induction_memory.trajectory.trajectory import Trajectory

RECALLS = ["W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2", "W_F_kl", "W_F_kl_reverse"]
AT_THE_END = [
    *("previous_token_mass1", "previous_token_argmax1", "previous_after_trigger1"),
    *("induction_mass2", "induction_argmax2", "induction_other_mass2", "induction_other_argmax2"),
    *("attended_is_target2", "accuracy_in_context", "loss_in_context", "loss_global", "loss", "bayes_loss", "excess"),
    *("W_K1_sir", "W_K2_sir", "W_O2_sir"),
]
DIGITS = 7
SEQUENCES = 128  # to measure the accuracy on
IGNORED = ("checkpoint", "crc32")
FILES = ("record.json", "metrics.csv", "probes.csv")


@dataclass(frozen=True, eq=False)
class Record:
    """What is kept of one run."""

    name: str
    config: RunConfig
    command: str
    seconds: float | None
    fingerprint: str
    metrics: pd.DataFrame
    probes: pd.DataFrame
    last: Mapping[str, float]

    @property
    def steps(self) -> int:
        return self.config.train.steps

    def accuracy(self, first: int | None = None, last: int | None = None) -> float:
        """Mean in-context accuracy of the fresh batches of the steps first..last; of the last twenty by default."""
        steps = self.metrics["step"].to_numpy()
        end = steps.max() if last is None else last
        start = end - 19 if first is None else first
        return float(np.nanmean(self.metrics["accuracy_in_context"].to_numpy()[(steps >= start) & (steps <= end)]))

    def recall(self, name: str, step: int | None = None) -> float:
        """A recall at the stored step nearest to the given one; at the last by default."""
        values, steps = self.probes[name].to_numpy(), self.probes.index.to_numpy()
        return float(values[-1 if step is None else np.abs(steps - step).argmin()])

    def mean_recall(self, name: str, until: int | None = None) -> float:
        """A recall on the average over training, or until a step of it, however the stored steps are spaced."""
        probes = self.probes.loc[:until]
        steps = probes.index.to_numpy()
        return float(np.trapezoid(probes[name].to_numpy(), steps) / (steps[-1] - steps[0]))

    def curve(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values of a metric, where it was measured."""
        values = self.metrics[column].to_numpy(dtype=float)
        return self.metrics["step"].to_numpy()[np.isfinite(values)], values[np.isfinite(values)]

    def reaches(self, name: str, level: float) -> float:
        """First stored step from which a recall stays at the level or above; infinite if it does not."""
        low = np.flatnonzero(~(self.probes[name].to_numpy() >= level))
        first = low[-1] + 1 if len(low) else 0
        return float(self.probes.index[first]) if first < len(self.probes) else float("inf")


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


def tuned_run(records: Records, d: int) -> Record:
    """Of Figure 8's runs in dimension d that are there, the one whose step size recalls most on the average."""
    there = [records.one(name) for name in plan.step_sizes(d).values() if f"{name}-seed-0" in records]
    if not there:
        raise MissingRunError(f"figure-8-d{d}-seed-0")
    return max(there, key=lambda run: run.mean_recall("W_O2"))


class MissingRunError(InputError):
    """A run that has not been trained."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has not been trained")


def make_record(run: Trajectory, name: str) -> Record:
    """Measure a finished run."""
    tables = probes.wide(probes.table(run, RECALLS))
    end = int(run.steps[-1])
    ending = probes.wide(probes.table(run, AT_THE_END, steps=[end]))
    last = {column: float(ending[column].iloc[0]) for column in ending} | diagonals(run, end) | _heads(run)
    last |= _drawn(run, end)
    command, seconds = provenance(run)
    metrics = run.metrics.drop(columns=list(IGNORED), errors="ignore")
    return Record(name, run.config, command, seconds, run.fingerprint, metrics, tables, last)


def diagonals(run: Trajectory, step: int) -> dict[str, float]:
    """How the right associations of each memory compare: rank correlation with position or frequency, and spread."""
    if run.config.model.n_heads > 1 or run.config.model.n_layers < 2:
        return {}
    found = {}
    for memory in ("W_K1", "W_K2", "W_O2"):
        table = probes.births(run, memory, steps=[step])
        against = "position" if "position" in table else "frequency"
        score = table["score"].to_numpy()
        correlation: Any = spearmanr(score, table[against])
        found[f"{memory}_diagonal_{against}"] = float(correlation.statistic)
        found[f"{memory}_diagonal_spread"] = float(score.std() / abs(score.mean()))
    return found


def _drawn(run: Trajectory, step: int) -> dict[str, float]:
    """Over the positions that an attention map shows: how often layer 1 looks back, and the accuracy on triggers that
    come for the first time among them.
    """
    if run.config.model.n_heads > 1:
        return {}
    name = "previous_token_argmax1"
    short = replace(run.task, length=min(plan.LETTERS, run.task.length))
    back = probes.table(run, name, steps=[step], task=short)["value"].iloc[0]
    batch, model = sample(run.task, SEQUENCES, step_rng(run.config.train.eval_seed, 0)), run.model(step)
    with torch.no_grad():
        predicted = torch.cat([model(tokens).argmax(-1) for tokens in batch.tokens.split(16)])
    first = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).int().argmax(-1)
    right = (predicted == batch.targets)[batch.in_context & (first < plan.LETTERS)]
    return {f"{name}_drawn": float(back), "accuracy_in_context_drawn": right.double().mean().item()}


def _heads(run: Trajectory) -> dict[str, float]:
    """Effective number of heads that carry each role, by exact Shapley values."""
    if run.config.model.n_heads == 1:
        return {}
    from induction_memory.heads import identify

    carriers = identify(run, step=int(run.steps[-1])).carriers.drop_duplicates("role")
    return {
        f"effective_heads_{role}": float(n) for role, n in zip(carriers["role"], carriers["effective"], strict=True)
    }


def provenance(run: Trajectory) -> tuple[str, float | None]:
    """The command that made the run, and the seconds it took where that is known."""
    if not isinstance(run.source, FolderSource):
        return "", None
    return run.source.manifest.command or "", run.source.manifest.seconds


def write(record: Record, folder: Path) -> None:
    """Write a record to a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "name": record.name,
        "command": record.command,
        "seconds": None if record.seconds is None else round(record.seconds),
        "fingerprint": record.fingerprint,
        "config": record.config.to_dict(),
        "last": {name: _rounded(value) for name, value in record.last.items()},
    }
    (folder / "metrics.csv").write_text(_csv(record.metrics, index=False), encoding="utf-8")
    (folder / "probes.csv").write_text(_csv(record.probes, index=True), encoding="utf-8")
    (folder / "record.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> Record:
    """The record in a folder."""
    try:
        about = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        metrics = pd.read_csv(folder / "metrics.csv")
        tables = pd.read_csv(folder / "probes.csv", index_col="step")
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected the record of a run ({', '.join(FILES)}), got {error}") from error
    last = {name: float("nan") if value is None else value for name, value in about["last"].items()}
    config, seconds = RunConfig.from_dict(about["config"]), about["seconds"]
    spent = None if seconds is None else float(seconds)
    return Record(about["name"], config, about["command"], spent, about["fingerprint"], metrics, tables, last)


def read_all(folder: Path) -> Records:
    """All records in a folder."""
    return Records([read(path.parent) for path in sorted(folder.glob("*/record.json"))])


def _rounded(value: float) -> float | None:
    return None if not np.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _csv(table: pd.DataFrame, index: bool) -> str:
    return table.dropna(axis="columns", how="all").to_csv(index=index, float_format=f"%.{DIGITS}g")
