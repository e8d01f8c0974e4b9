"""The trajectory of a run while it grows: what is written, in which order, and how it is taken up again.

    begin     frozen.safetensors, grafts.safetensors, latest.safetensors (the start), then manifest.json:
              without a manifest there is no run
    step n    if a state is kept, the metrics before step n are flushed first, then steps/<n>.safetensors or
              latest.safetensors (weights and optimiser before update n) is put in place; then line n is appended
    finish    the last metrics are flushed, trained.safetensors and optimizer.safetensors written from the steps, then
              the manifest says "finished", and only then steps/ and latest.safetensors are removed
    resume    the latest intact state is taken, the metrics are cut before line n, and training goes on: whenever a file
              with the state of step n exists, the metrics of all steps before n are on the disk
    lengthen  the files in steps/ of a finished run are written again, then the manifest says "training" with the new
              number of steps, and only then the stacked files are removed

Later steps of a killed run are computed again, with the same bits. So is a step whose file is damaged, or belongs to
another run, from the state before it. A run that is given more steps ends with the same bits as one that had them from
the start.

A stacked file has each parameter as [step, ...], one step of it a contiguous block: one matrix over all steps, or at
one step, is a single read. It is written with one block in memory at a time. Each block is checked when it is read, so
that damage is found here and not copied.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.errors import DamagedError
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import make_folder
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.layout import (
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
    parts,
    step_files,
    step_path,
)
from induction_memory.trajectory.lock import tidy
from induction_memory.trajectory.manifest import Manifest, Piece, digest, piece_of, provenance
from induction_memory.trajectory.states import checksum, stored_names
from induction_memory.trajectory.tensors import (
    SealedFile,
    open_listed,
    open_state,
    rounded_steps,
    write_stack,
    write_tensors,
)


def compact(folder: Path, manifest: Manifest, steps: Sequence[int]) -> dict[str, Piece]:
    """Write the stacked files of a run from the files of its steps; return their pieces and that of the metrics."""
    opened = {step: open_state(step_path(folder, step), manifest, step) for step in steps}
    last = opened[steps[-1]]  # it has the optimiser's state in any case
    resumable = [step for step in steps if opened[step].tensors.keys() == last.tensors.keys()]

    def stack(target: str, prefix: str, chosen: Sequence[int]) -> Piece:
        like = last.read_all(prefix)
        return write_stack(folder / target, chosen, like, lambda name, step: opened[step].read(prefix + name))

    return {
        TRAINED: stack(TRAINED, STATE_WEIGHTS, steps),
        OPTIMIZER: stack(OPTIMIZER, STATE_OPTIMIZER, resumable),
        METRICS: piece_of(folder / METRICS),
    }


@dataclass(frozen=True)
class ResumePoint:
    """The latest intact state of an unfinished run, and what is known up to it."""

    step: int
    parameters: dict[str, Tensor]
    """Every parameter before update `step`."""
    optimizer: dict[str, Tensor]
    grafts: dict[Graft, Tensor]
    rows: list[dict[str, Any]]
    """The metrics of all steps before `step`."""
    size: int
    """Bytes of metrics.jsonl that these take."""
    notes: tuple[str, ...]
    """Damage that was found; the damaged steps are computed again."""


def resume_point(folder: Path, manifest: Manifest, config: RunConfig) -> ResumePoint:
    """The point from which the unfinished run in `folder` resumes."""
    frozen = open_listed(folder, manifest, FROZEN).read_all()
    grafts: dict[Graft, Tensor] = {}
    if config.train.graft_rules:
        file = open_listed(folder, manifest, GRAFTS)
        grafts = {rule: file.read(str(i)) for i, rule in enumerate(config.train.graft_rules)}
    rows, begins = row_files.intact(row_files.read(folder), manifest)
    notes = _drop_from_first_damage(folder, manifest, rows)
    state = _latest_state(folder, manifest, len(rows), notes)
    parameters, optimizer = frozen | state.read_all(STATE_WEIGHTS), state.read_all(STATE_OPTIMIZER)
    step = state.steps[0]
    done = step - manifest.first_step
    return ResumePoint(step, parameters, optimizer, grafts, rows[:done], begins[done], tuple(dict.fromkeys(notes)))


def kept_alone(folder: Path, manifest: Manifest, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The kept steps that have a file of their own while the run trains."""
    rounded = rounded_steps(folder, manifest)
    return [row["step"] for row in rows if row["checkpoint"] and row["step"] not in rounded]


def _drop_from_first_damage(folder: Path, manifest: Manifest, rows: list[dict[str, Any]]) -> list[str]:
    """Find the first kept step whose file is damaged, and drop the rows from it on, so that it is computed again.

    Returns what is wrong with that file.
    """
    for step in kept_alone(folder, manifest, rows):
        try:
            open_state(step_path(folder, step), manifest, step).check()
        except DamagedError as damage:
            del rows[step - manifest.first_step :]
            return [str(damage)]
    return []


def _latest_state(folder: Path, manifest: Manifest, done: int, notes: list[str]) -> SealedFile:
    """The latest intact state that includes the optimiser's and all metrics before it; adds damage to `notes`."""
    best: SealedFile | None = None
    for step in (None, *reversed(step_files(folder))):
        if best is not None and step is not None and step <= best.steps[0]:
            break
        path = folder / LATEST if step is None else step_path(folder, step)
        if not path.exists():
            continue
        try:
            found = open_state(path, manifest, step)
            resumable = any(name.startswith(STATE_OPTIMIZER) for name in found.tensors)
            if resumable and manifest.first_step <= found.steps[0] <= manifest.first_step + done:
                found.check()
                best = found
        except DamagedError as error:
            notes.append(str(error))
    if best is None:
        raise DamagedError(folder, f"no state to resume from ({'; '.join(notes) or 'none was kept'})")
    return best


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
    frozen, started = {}, {}
    for name in stored_names(config.model, origin.parameters):
        (started if name in moving else frozen)[name] = origin.parameters[name]
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
    write_state(folder / LATEST, manifest, origin.first_step, started, origin.optimizer)
    manifest.write(folder)


class Writer:
    """Puts one step after another on the disk."""

    def __init__(self, folder: Path, manifest: Manifest, config: RunConfig, point: ResumePoint) -> None:
        self.folder, self.config = folder, config
        self.manifest = manifest.replace(seconds=spent(folder, manifest))
        self.manifest.write(folder)
        self._begun = time.monotonic()
        for part in parts(folder):
            part.unlink(missing_ok=True)
        self._kept = kept_alone(folder, manifest, point.rows)
        self._lines = row_files.Appender(folder / METRICS, keep=point.size)

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
        with_optimizer = train.keep_optimizer or step == train.steps
        due = (step - self.manifest.first_step) % train.resume_every == 0
        if checkpoint or due:
            self._lines.sync()
            moving = {n: parameters[n] for n in stored_names(self.config.model, self.config.moving_parameters)}
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
        spent, pieces = self.manifest.seconds, compact(self.folder, self.manifest, self._kept)
        seconds = None if spent is None else spent + time.monotonic() - self._begun
        pieces = self.manifest.pieces | pieces
        self.manifest.replace(state="finished", seconds=seconds, pieces=pieces).write(self.folder)
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
    state = {STATE_WEIGHTS + name: value for name, value in parameters.items()}
    state |= {STATE_OPTIMIZER + name: value for name, value in optimizer.items()}
    write_tensors(path, state, [step], manifest.identity)


def why_not_longer(folder: Path, manifest: Manifest, longer: RunConfig) -> Iterator[str]:
    """Reasons why the run in `folder` is not the beginning of the longer run."""
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
        _unpack(folder, manifest)
    changed = {"state": "training", "config": config.to_dict(), "seconds": seconds, "pieces": pieces}
    manifest.replace(**changed, command=command or manifest.command).write(folder)
    for name in (TRAINED, OPTIMIZER):
        (folder / name).unlink(missing_ok=True)


def _unpack(folder: Path, manifest: Manifest) -> None:
    """The files of single steps, from the stacked ones."""
    weights, optimizer = (open_listed(folder, manifest, name) for name in (TRAINED, OPTIMIZER))
    make_folder(folder / STEPS)
    for step in weights.steps:
        moving = weights.read_all(step=step)
        state = optimizer.read_all(step=step) if step in optimizer.steps else {}
        write_state(step_path(folder, step), manifest, step, moving, state)
        if step == weights.steps[-1]:  # training on writes its file again, perhaps without the optimiser's state
            write_state(folder / LATEST, manifest, step, moving, state)
