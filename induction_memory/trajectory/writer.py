"""The trajectory of a run while it grows: what is written, in which order, and where a killed run goes on.

    begin     frozen.safetensors, grafts.safetensors, latest.safetensors (the start), then manifest.json:
              without a manifest there is no run, and the folder counts as empty
    step n    when something is kept: metrics before step n are flushed, then steps/<n>.safetensors or
              latest.safetensors (weights and optimiser before update n) is put in place; then line n is appended
    finish    the last metrics are flushed, trained.safetensors and optimizer.safetensors written from the steps, then
              the manifest says "finished", and only then steps/ and latest.safetensors are removed
    lengthen  a run that is to have more steps: a finished one gets its steps/ back, then the manifest says "training"
              with the new number of steps, and only then the stacked files are removed

So whenever a file with the state of step n exists, the metrics of all steps before n are on the disk: resuming takes
the latest such file, cuts the metrics before line n, and goes on. What the killed run had done beyond is done again,
with the same bits. A step that turns out damaged is done again in the same way, from the state before it.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.errors import InputError
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
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    STEPS,
    TRAINED,
    step_path,
    stored_steps,
)
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.sealed import DamagedError, SealedFile, damage_of, write_tensors
from induction_memory.trajectory.states import stored_names


@dataclass(frozen=True)
class Origin:
    """What a run begins with."""

    parameters: Mapping[str, Tensor]
    """Every parameter at the first step."""
    optimizer: Mapping[str, Tensor]
    """The optimiser's state at the first step."""
    grafts: Mapping[Graft, Tensor]
    """The matrix of each graft, kept with the run so that it needs no other."""
    first_step: int = 0
    """Number of the first step."""
    parent: dict[str, Any] | None = None
    """Where a branch comes from."""


@dataclass(frozen=True)
class ResumePoint:
    """The latest state of an unfinished run that is whole, and what is known up to it."""

    step: int
    parameters: dict[str, Tensor]
    """Every parameter before update `step`."""
    optimizer: dict[str, Tensor]
    grafts: dict[Graft, Tensor]
    rows: list[dict[str, Any]]
    """The metrics of all steps before."""
    size: int
    """Bytes of metrics.jsonl that these take."""
    notes: tuple[str, ...]
    """Damage that was passed over; what it held is computed again."""


def is_empty(folder: Path) -> bool:
    """Whether a run may begin here: nothing there but what a run that never began has left."""
    own = {FROZEN, GRAFTS, LATEST, STEPS, ".lock"}
    return not folder.exists() or (
        folder.is_dir() and all(p.name in own or p.name.endswith(".part") for p in folder.iterdir())
    )


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
    started = {name: origin.parameters[name] for name in names if name in moving}
    _write_state(folder / LATEST, origin.first_step, started, origin.optimizer)
    Manifest(
        state="training",
        config=config.to_dict(),
        first_step=origin.first_step,
        parent=origin.parent,
        seconds=0.0,
        pieces=pieces,
        **manifests.provenance(command, threads),
    ).write(folder)


def why_not_longer(folder: Path, manifest: Manifest, longer: RunConfig) -> Iterator[str]:
    """What keeps the run in `folder` from being the beginning of one with more steps."""
    train = RunConfig.from_dict(manifest.config).train
    before, after = ({s for s in t.checkpoint_rule.fixed if s < train.steps} for t in (train, longer.train))
    if train.schedule != "constant":
        yield f"its {train.schedule} decay ends at step {train.steps}"
    if before != after:
        yield f"{train.checkpoints!r} keeps other steps before {train.steps} then"
    if manifest.state != "finished":
        return
    rows = row_files.read(folder / row_files.NAME, manifest.first_step, manifest.rows)
    steps = SealedFile.open(folder / TRAINED).steps
    if [row["step"] for row in rows if row["checkpoint"]] != list(steps):
        yield "some of its steps were left out"
    if OPTIMIZER not in manifest.pieces or steps[-1] not in SealedFile.open(folder / OPTIMIZER).steps:
        yield "it was kept without its optimiser's state"
    if train.grafts and GRAFTS not in manifest.pieces:
        yield "it was kept without what it grafts"


def lengthen(folder: Path, manifest: Manifest, config: RunConfig, command: str | None) -> None:
    """Make the run in `folder` one of more steps, which stands where it stood."""
    seconds, pieces = manifest.seconds, {n: p for n, p in manifest.pieces.items() if n in (FROZEN, GRAFTS)}
    for name in pieces:
        if damage := damage_of(folder / name):
            raise InputError(damage)
    if manifest.state == "training":
        seconds = _spent(folder, manifest)
    else:
        weights, optimizer = (SealedFile.open(folder / name) for name in (TRAINED, OPTIMIZER))
        make_folder(folder / STEPS)
        for step in weights.steps:
            held = optimizer.entries if step in optimizer.steps else ()
            moving = {name: weights.read_step(name, step) for name in weights.entries}
            state = {name: optimizer.read_step(name, step) for name in held}
            _write_state(step_path(folder, step), step, moving, state)
            if step == weights.steps[-1]:  # training on writes its file again, perhaps without the optimiser's state
                _write_state(folder / LATEST, step, moving, state)
    command = command or manifest.command
    changed = manifest.replace(
        state="training", config=config.to_dict(), rows=None, seconds=seconds, pieces=pieces, command=command
    )
    changed.write(folder)
    for name in (TRAINED, OPTIMIZER):
        (folder / name).unlink(missing_ok=True)


def resume_point(folder: Path, manifest: Manifest, config: RunConfig) -> ResumePoint:
    """Where the unfinished run in `folder` goes on."""
    rows, ends = row_files.intact(folder / row_files.NAME, manifest.first_step)
    whole = SealedFile.open(folder / FROZEN)
    frozen = {name: whole.read(name) for name in whole.entries}
    grafts: dict[Graft, Tensor] = {}
    if config.train.graft_rules:
        file = SealedFile.open(folder / GRAFTS)
        grafts = {rule: file.read(str(i)) for i, rule in enumerate(config.train.graft_rules)}
    notes: list[str] = []
    for done, row in enumerate(rows):
        if row["checkpoint"] and (damage := damage_of(step_path(folder, row["step"]))):
            notes.append(damage)  # what follows is done again, to have this step once more
            del rows[done:]
            break
    best: tuple[int, dict[str, Tensor]] | None = None
    for path in _candidates(folder):
        if best is not None and int(path.stem) <= best[0]:
            break
        try:
            file = SealedFile.open(path)
            held = any(name.startswith(OPTIMIZER_PREFIX) for name in file.entries)
            if held and file.steps[0] <= manifest.first_step + len(rows):
                best = file.steps[0], {name: file.read(name) for name in file.entries}
        except DamagedError as error:
            notes.append(str(error))
    if best is None:
        raise InputError(f"{folder}: expected a state to resume from, got {'; '.join(notes) or 'none'}")
    step, tensors = best
    done = step - manifest.first_step
    optimizer = {n.removeprefix(OPTIMIZER_PREFIX): t for n, t in tensors.items() if n.startswith(OPTIMIZER_PREFIX)}
    moving = {n: t for n, t in tensors.items() if not n.startswith(OPTIMIZER_PREFIX)}
    size = ends[done - 1] if done else 0
    said = tuple(dict.fromkeys(notes))
    return ResumePoint(step, frozen | moving, optimizer, grafts, rows[:done], size, said)


class Writer:
    """Puts one step after another on the disk."""

    def __init__(self, folder: Path, manifest: Manifest, config: RunConfig, point: ResumePoint) -> None:
        self.folder, self.config = folder, config
        self.manifest = manifest.replace(seconds=_spent(folder, manifest))
        self.manifest.write(folder)
        self._begun = time.monotonic()
        remove_parts(folder)
        remove_parts(folder / STEPS)
        self._kept = [row["step"] for row in point.rows if row["checkpoint"]]
        self._lines = Appender(folder / row_files.NAME, keep=point.size)

    def record(
        self,
        step: int,
        row: Mapping[str, Any],
        checkpoint: bool,
        parameters: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
    ) -> None:
        """Keep the metrics of a step and, where they are due, its weights and the state to resume from."""
        train = self.config.train
        moving = {n: parameters[n] for n in stored_names(self.config.model, self.config.moving_parameters)}
        with_optimizer = train.keep_optimizer or step == train.steps
        due = (step - self.manifest.first_step) % train.resume_every == 0
        if checkpoint or due:
            self._lines.sync()
        if checkpoint:
            _write_state(step_path(self.folder, step), step, moving, optimizer if with_optimizer else {})
            self._kept.append(step)
        if due and not (checkpoint and with_optimizer):
            _write_state(self.folder / LATEST, step, moving, optimizer)
        self._lines.append(row_files.encode({**row, "checkpoint": checkpoint}))

    def finish(self) -> None:
        """Compact the steps into stacked files and say that the run is whole."""
        self._lines.sync()
        spent, pieces = self.manifest.seconds, self.manifest.pieces | compact(self.folder, self._kept)
        self.manifest.replace(
            state="finished",
            rows=self.config.train.steps - self.manifest.first_step + 1,
            seconds=None if spent is None else spent + time.monotonic() - self._begun,
            pieces=pieces,
        ).write(self.folder)
        tidy(self.folder)

    def close(self) -> None:
        self._lines.close()


def tidy(folder: Path) -> None:
    """Remove what a finished run no longer needs."""
    remove_parts(folder)
    (folder / LATEST).unlink(missing_ok=True)
    shutil.rmtree(folder / STEPS, ignore_errors=True)


def _spent(folder: Path, manifest: Manifest) -> float | None:
    """Seconds of training until now: a process that was killed began with its manifest and ended with its last line."""
    lines = folder / row_files.NAME
    last = lines.stat().st_mtime - (folder / manifests.NAME).stat().st_mtime if lines.exists() else 0.0
    return None if manifest.seconds is None else manifest.seconds + max(0.0, last)


def _candidates(folder: Path) -> list[Path]:
    """The files that may hold a state to resume from: that of the latest, then the steps backwards."""
    steps = [step_path(folder, step) for step in reversed(stored_steps(folder))]
    return [path for path in [folder / LATEST, *steps] if path.exists()]


def _write_state(path: Path, step: int, parameters: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> None:
    state = {OPTIMIZER_PREFIX + name: value for name, value in optimizer.items()}
    write_tensors(path, {**parameters, **state}, [step])
