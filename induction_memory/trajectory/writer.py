"""The trajectory of a run while it grows: what is written, and in which order.

    begin     frozen.safetensors, grafts.safetensors, latest.safetensors (the start), then manifest.json:
              without a manifest there is no run, and the folder counts as empty
    step n    if a state is kept, the metrics before step n are flushed first, then steps/<n>.safetensors or
              latest.safetensors (weights and optimiser before update n) is put in place; then line n is appended
    finish    the last metrics are flushed, trained.safetensors and optimizer.safetensors written from the steps, then
              the manifest says "finished", and only then steps/ and latest.safetensors are removed

So whenever a file with the state of step n exists, the metrics of all steps before n are on the disk, and the run can
be resumed from there (`resuming.py`).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.trajectory import manifest as manifests
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.compaction import compact
from induction_memory.trajectory.durable import Appender, make_folder, remove_parts
from induction_memory.trajectory.layout import (
    FROZEN,
    GRAFTS,
    LATEST,
    MANIFEST,
    METRICS,
    OPTIMIZER_PREFIX,
    STEPS,
    step_path,
)
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.ownership import tidy
from induction_memory.trajectory.resuming import ResumePoint
from induction_memory.trajectory.rounded import rounded_steps
from induction_memory.trajectory.sealed import write_tensors
from induction_memory.trajectory.states import checksum, stored_names


@dataclass(frozen=True)
class Origin:
    """What a run begins with."""

    parameters: Mapping[str, Tensor]
    """Every parameter at the first step."""
    optimizer: Mapping[str, Tensor]
    """The optimiser's state at the first step."""
    grafts: Mapping[Graft, Tensor]
    """The matrix of each graft, kept with the run so that it does not depend on other runs."""
    initial: Mapping[str, Tensor] | None
    """Every parameter before any training; None if it is not known."""
    first_step: int = 0
    """Number of the first step."""
    parent: dict[str, Any] | None = None
    """Where a branch comes from."""


def begin(folder: Path, config: RunConfig, origin: Origin, command: str | None, threads: int | None) -> None:
    """Make the folder a run that stands at its first step."""
    moving = set(config.moving_parameters)
    names = stored_names(config.model, origin.parameters)
    make_folder(folder / STEPS)
    pieces = {
        FROZEN: write_tensors(folder / FROZEN, {n: origin.parameters[n] for n in names if n not in moving}),
    }
    if origin.grafts:
        rules = config.train.graft_rules
        matrices = {str(i): origin.grafts[rule] for i, rule in enumerate(rules)}
        pieces[GRAFTS] = write_tensors(folder / GRAFTS, matrices)
    manifest = Manifest(
        state="training",
        config=config.to_dict(),
        first_step=origin.first_step,
        parent=origin.parent,
        seconds=0.0,
        pieces=pieces,
        initial=None if origin.initial is None else checksum(config.model, origin.initial),
        **manifests.provenance(command, threads),
    ).identified()
    started = {name: origin.parameters[name] for name in names if name in moving}
    write_state(folder / LATEST, manifest, origin.first_step, started, origin.optimizer)
    manifest.write(folder)


class Writer:
    """Puts one step after another on the disk."""

    def __init__(self, folder: Path, manifest: Manifest, config: RunConfig, point: ResumePoint) -> None:
        self.folder, self.config = folder, config
        self.manifest = manifest.replace(seconds=spent(folder, manifest))
        self.manifest.write(folder)
        self._begun = time.monotonic()
        remove_parts(folder)
        rounded = rounded_steps(folder, manifest)
        self._kept = [row["step"] for row in point.rows if row["checkpoint"] and row["step"] not in rounded]
        self._lines = Appender(folder / METRICS, keep=point.size)

    def record(
        self,
        step: int,
        row: Mapping[str, Any],
        checkpoint: bool,
        parameters: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
    ) -> None:
        """Keep the metrics of a step and, if they are due, its weights and the state to resume from."""
        train = self.config.train
        moving = {n: parameters[n] for n in stored_names(self.config.model, self.config.moving_parameters)}
        with_optimizer = train.keep_optimizer or step == train.steps
        due = (step - self.manifest.first_step) % train.resume_every == 0
        if checkpoint or due:
            self._lines.sync()
        if checkpoint:
            state = optimizer if with_optimizer else {}
            write_state(step_path(self.folder, step), self.manifest, step, moving, state)
            self._kept.append(step)
        if due and not (checkpoint and with_optimizer):
            write_state(self.folder / LATEST, self.manifest, step, moving, optimizer)
        self._lines.append(row_files.encode({**row, "checkpoint": checkpoint}, self.manifest.key))

    def finish(self) -> None:
        """Compact the steps into stacked files and mark the run as finished."""
        self._lines.sync()
        spent, manifest = self.manifest.seconds, self.manifest
        manifest.replace(
            state="finished",
            rows=self.config.train.steps - manifest.first_step + 1,
            seconds=None if spent is None else spent + time.monotonic() - self._begun,
            pieces=manifest.pieces | compact(self.folder, self._kept, manifest.identity),
        ).write(self.folder)
        tidy(self.folder)

    def close(self) -> None:
        self._lines.close()


def spent(folder: Path, manifest: Manifest) -> float | None:
    """Seconds of training so far. A killed process counts from its manifest to its last line of metrics."""
    lines = folder / METRICS
    last = lines.stat().st_mtime - (folder / MANIFEST).stat().st_mtime if lines.exists() else 0.0
    return None if manifest.seconds is None else manifest.seconds + max(0.0, last)


def write_state(
    path: Path, manifest: Manifest, step: int, parameters: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
) -> None:
    """Write the state of one step of the manifest's run."""
    state = {OPTIMIZER_PREFIX + name: value for name, value in optimizer.items()}
    write_tensors(path, {**parameters, **state}, [step], manifest.identity)
