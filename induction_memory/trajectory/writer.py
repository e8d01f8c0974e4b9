"""Writing a trajectory during training: what is written, in which order, and how a run resumes.

    begin     frozen.safetensors, grafts.safetensors, latest.safetensors (the start), then manifest.json:
              without a manifest there is no run
    step n    if a state is kept, the metrics before step n are flushed first, then steps/<n>.safetensors or
              latest.safetensors (weights and optimiser before update n) is renamed into place; then line n is appended
    finish    the last metrics are flushed, trained.safetensors and optimizer.safetensors written from the steps, then
              the manifest says "finished", and only then steps/ and latest.safetensors are removed
    resume    the latest intact state is read, the metrics are cut before line n, and training continues: whenever a
              file with the state of step n exists, the metrics of all steps before n are on the disk
    lengthen  the files in steps/ of a finished run are written again, then the manifest says "training" with the new
              number of steps, and only then the stacked files are removed

Later steps of a killed run are recomputed, with the same bits. A step whose file is damaged, or belongs to another run,
is recomputed from the state before it. A run that is extended ends with the same bits as a run that had all steps from
the start.

A stacked file has each parameter as [step, ...]; each step is a contiguous block, so one matrix over all steps, or at
one step, is a single read. The file is written with one block in memory at a time. Blocks are checked when read, so
damage is found here and not copied.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.errors import DamagedError
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import make_folder
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.lock import remove_parts, tidy
from induction_memory.trajectory.manifest import (
    FROZEN,
    GRAFTS,
    LATEST,
    MANIFEST,
    METRICS,
    OPTIMIZER,
    ROUNDED,
    STATE_OPTIMIZER,
    STATE_WEIGHTS,
    STEPS,
    TRAINED,
    Manifest,
    digest,
    piece_of,
    provenance,
    step_files,
    step_path,
)
from induction_memory.trajectory.tensors import checksum, open_listed, open_state, stored_names, write_tensors


@dataclass(frozen=True)
class ResumePoint:
    """The latest intact state of an unfinished run, and the metrics before it."""

    step: int
    parameters: dict[str, Tensor]
    """Every parameter before update `step`."""
    optimizer: dict[str, Tensor]
    grafts: dict[Graft, Tensor]
    rows: list[dict[str, Any]]
    """The metrics of all steps before `step`."""
    size: int
    """The number of bytes of these metrics in metrics.jsonl."""
    notes: tuple[str, ...]
    """Damage that was found; the damaged steps are recomputed."""


def resume_point(folder: Path, manifest: Manifest, config: RunConfig) -> ResumePoint:
    """The point from which the unfinished run in `folder` resumes."""
    frozen = open_listed(folder, manifest, FROZEN).read_all()
    grafts: dict[Graft, Tensor] = {}
    if config.train.graft_rules:
        file = open_listed(folder, manifest, GRAFTS)
        grafts = {rule: file.read(str(i)) for i, rule in enumerate(config.train.graft_rules)}
    rows, begins = row_files.intact(row_files.read(folder), manifest)
    notes: list[str] = []
    for step in kept_alone(folder, manifest, rows):
        try:
            open_state(step_path(folder, step), manifest, step).check()
        except DamagedError as damage:  # this step and later ones are recomputed
            notes.append(str(damage))
            del rows[step - manifest.first_step :]
            break
    step, weights, optimizer = _latest_state(folder, manifest, len(rows), notes)
    done = step - manifest.first_step
    damage = tuple(dict.fromkeys(notes))
    return ResumePoint(step, frozen | weights, optimizer, grafts, rows[:done], begins[done], damage)


def kept_alone(folder: Path, manifest: Manifest, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The kept steps that have single files while the run trains."""
    rounded = open_listed(folder, manifest, ROUNDED).steps if ROUNDED in manifest.pieces else ()
    return [row["step"] for row in rows if row["checkpoint"] and row["step"] not in rounded]


def _latest_state(
    folder: Path, manifest: Manifest, done: int, notes: list[str]
) -> tuple[int, dict[str, Tensor], dict[str, Tensor]]:
    """Step, weights and optimiser's state of the latest intact state with complete metrics before it.

    Adds damage to `notes`.
    """
    best: tuple[int, dict[str, Tensor], dict[str, Tensor]] | None = None
    for step in (None, *reversed(step_files(folder))):
        if best is not None and step is not None and step <= best[0]:
            break
        path = folder / LATEST if step is None else step_path(folder, step)
        if not path.exists():
            continue
        try:
            found = open_state(path, manifest, step)
            if manifest.first_step <= found.steps[0] <= manifest.first_step + done:
                optimizer = found.read_all(STATE_OPTIMIZER)
                if optimizer:
                    best = found.steps[0], found.read_all(STATE_WEIGHTS), optimizer
        except DamagedError as error:
            notes.append(str(error))
    if best is None:
        raise DamagedError(folder, f"no state to resume from ({'; '.join(notes) or 'none was kept'})")
    return best


@dataclass(frozen=True)
class Origin:
    """The start of a run or branch: weights, optimiser's state, grafts."""

    parameters: Mapping[str, Tensor]
    """Every parameter at the first step."""
    optimizer: Mapping[str, Tensor]
    """The optimiser's state at the first step."""
    grafts: Mapping[Graft, Tensor]
    """The matrix of each graft, kept with the run so that the run does not depend on others."""
    initial: Mapping[str, Tensor] | None
    """Every parameter before any training; None if it is not known."""
    first_step: int = 0
    """Number of the first step."""
    parent: dict[str, Any] | None = None
    """Where a branch comes from."""


def begin(folder: Path, config: RunConfig, origin: Origin, command: str | None, threads: int | None) -> None:
    """Make the folder a run at its first step."""
    moving = set(config.moving_parameters)
    frozen = {}
    for name in stored_names(config.model, origin.parameters):
        if name not in moving:
            frozen[name] = origin.parameters[name]
    make_folder(folder / STEPS)
    pieces = {FROZEN: write_tensors(folder / FROZEN, frozen)}
    if origin.grafts:
        matrices = {str(i): origin.grafts[rule] for i, rule in enumerate(config.train.graft_rules)}
        pieces[GRAFTS] = write_tensors(folder / GRAFTS, matrices)
    values = config.to_dict()
    initial = None if origin.initial is None else checksum(config.model, origin.initial)
    made = provenance(command, threads)
    lasting = {**values, "train": {**values["train"], "steps": None}}  # more steps do not change the identity
    seals = {name: piece.seal for name, piece in pieces.items()}
    identity = digest([lasting, origin.first_step, origin.parent, seals, initial, threads, made["versions"]])
    manifest = Manifest(
        state="training",
        config=values,
        first_step=origin.first_step,
        parent=origin.parent,
        seconds=0.0,
        pieces=pieces,
        identity=identity,
        initial=initial,
        **made,
    )
    write_state(folder / LATEST, manifest, config, origin.first_step, origin.parameters, origin.optimizer)
    manifest.write(folder)


class Writer:
    """Puts one step after another on the disk."""

    def __init__(self, folder: Path, manifest: Manifest, config: RunConfig, point: ResumePoint) -> None:
        self.folder, self.config = folder, config
        self.manifest = replace(manifest, seconds=spent(folder, manifest))
        self.manifest.write(folder)
        self._begun = time.monotonic()
        remove_parts(folder)
        self._kept = kept_alone(folder, manifest, point.rows)
        self._metrics = folder / METRICS
        row_files.flush(self._metrics, keep=point.size)

    def record(
        self,
        step: int,
        row: Mapping[str, Any],
        checkpoint: bool,
        parameters: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
    ) -> None:
        """Keep the metrics of a step and, if due, its weights and the state to resume from."""
        train = self.config.train
        with_optimizer = train.keep_optimizer or step == train.steps
        due = (step - self.manifest.first_step) % train.resume_every == 0
        if checkpoint or due:
            row_files.flush(self._metrics)
            if checkpoint:
                path, state = step_path(self.folder, step), optimizer if with_optimizer else {}
                write_state(path, self.manifest, self.config, step, parameters, state)
                self._kept.append(step)
            if due and not (checkpoint and with_optimizer):
                write_state(self.folder / LATEST, self.manifest, self.config, step, parameters, optimizer)
        row_files.append(self._metrics, row_files.encode({**row, "checkpoint": checkpoint}, self.manifest.key))

    def finish(self) -> None:
        """Compact the steps into stacked files and mark the run as finished."""
        row_files.flush(self._metrics)
        opened = {step: open_state(step_path(self.folder, step), self.manifest, step) for step in self._kept}
        last = opened[self._kept[-1]]  # it always has the optimiser's state
        resumable = [step for step in self._kept if opened[step].tensors.keys() == last.tensors.keys()]
        stacks = {
            TRAINED: write_tensors(
                self.folder / TRAINED,
                last.read_all(STATE_WEIGHTS),
                self._kept,
                read=lambda name, step: opened[step].read(STATE_WEIGHTS + name),
            ),
            OPTIMIZER: write_tensors(
                self.folder / OPTIMIZER,
                last.read_all(STATE_OPTIMIZER),
                resumable,
                read=lambda name, step: opened[step].read(STATE_OPTIMIZER + name),
            ),
            METRICS: piece_of(self._metrics),
        }
        before = self.manifest.seconds
        seconds = None if before is None else before + time.monotonic() - self._begun
        pieces = self.manifest.pieces | stacks
        replace(self.manifest, state="finished", seconds=seconds, pieces=pieces).write(self.folder)
        tidy(self.folder)


def spent(folder: Path, manifest: Manifest) -> float | None:
    """Seconds of training so far. A killed process counts from its manifest to its last line of metrics."""
    lines = folder / METRICS
    last = lines.stat().st_mtime - (folder / MANIFEST).stat().st_mtime if lines.exists() else 0.0
    return None if manifest.seconds is None else manifest.seconds + max(0.0, last)


def write_state(
    path: Path,
    manifest: Manifest,
    config: RunConfig,
    step: int,
    parameters: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
) -> None:
    """Write the state of one step: the parameters that may change, and the optimiser's state."""
    moving = stored_names(config.model, config.moving_parameters)
    state = {STATE_WEIGHTS + name: parameters[name] for name in moving}
    state |= {STATE_OPTIMIZER + name: value for name, value in optimizer.items()}
    write_tensors(path, state, [step], run=manifest.identity)


def why_not_longer(folder: Path, manifest: Manifest, longer: RunConfig) -> Iterator[str]:
    """Reasons why the run in `folder` cannot be extended to the longer run."""
    train = manifest.part(folder, "train")
    before, after = ({s for s in t.checkpoint_rule.fixed if s < train.steps} for t in (train, longer.train))
    if train.schedule != "constant":
        yield f"its {train.schedule} decay ends at step {train.steps}"
    if before != after:
        yield f"with more steps, {train.checkpoints!r} keeps other steps before {train.steps}"
    if not manifest.finished:
        return
    steps = open_listed(folder, manifest, TRAINED).steps
    if kept_alone(folder, manifest, row_files.of(folder, manifest)) != list(steps):
        yield "some of its steps were left out"
    if OPTIMIZER not in manifest.pieces or steps[-1:] != open_listed(folder, manifest, OPTIMIZER).steps[-1:]:
        yield "it was kept without its optimiser's state"
    if train.grafts and GRAFTS not in manifest.pieces:
        yield "it was kept without the matrices of its grafts"


def lengthen(folder: Path, manifest: Manifest, config: RunConfig, command: str | None) -> None:
    """Give the run in `folder` more steps, without changing the step that it has reached."""
    pieces = {name: piece for name, piece in manifest.pieces.items() if name in (FROZEN, GRAFTS, ROUNDED)}
    for name in pieces:
        open_listed(folder, manifest, name).check()
    seconds = manifest.seconds if manifest.finished else spent(folder, manifest)
    if manifest.finished:
        _unpack(folder, manifest, config)
    changed = {"state": "training", "config": config.to_dict(), "seconds": seconds, "pieces": pieces}
    replace(manifest, **changed, command=command or manifest.command).write(folder)
    for name in (TRAINED, OPTIMIZER):
        (folder / name).unlink(missing_ok=True)


def _unpack(folder: Path, manifest: Manifest, config: RunConfig) -> None:
    """Write the files of single steps again, from the stacked files."""
    weights, optimizer = (open_listed(folder, manifest, name) for name in (TRAINED, OPTIMIZER))
    make_folder(folder / STEPS)
    for step in weights.steps:
        moving = weights.read_all(step=step)
        state = optimizer.read_all(step=step) if step in optimizer.steps else {}
        write_state(step_path(folder, step), manifest, config, step, moving, state)
        if step == weights.steps[-1]:  # further training rewrites its file, perhaps without the optimiser's state
            write_state(folder / LATEST, manifest, config, step, moving, state)
