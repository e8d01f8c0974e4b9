"""The trajectory of a run while it grows: what is written, and in which order.

    begin     frozen.safetensors, grafts.safetensors, latest.safetensors (the start), then manifest.json:
              without a manifest there is no run, and the folder counts as empty
    step n    if a state is kept, the metrics before step n are flushed first, then steps/<n>.safetensors or
              latest.safetensors (weights and optimiser before update n) is put in place; then line n is appended
    finish    the last metrics are flushed, trained.safetensors and optimizer.safetensors written from the steps, then
              the manifest says "finished", and only then steps/ and latest.safetensors are removed

So whenever a file with the state of step n exists, the metrics of all steps before n are on the disk, and the run can
be resumed from there (`resuming.py`).

From one file per step to one stacked file: each parameter [step, ...], one step of it a contiguous block.

One matrix over all steps, or at one step, is then a single read. Only one block is in memory at a time. Each block is
checked when it is read, and each file must belong to its run and step, so that damage is found here and not copied.

From which step a killed run resumes.

Whenever a file with the state of step n exists, the metrics of all steps before n are on the disk (`writer.py`).
Resuming takes the latest such state that is intact, cuts the metrics before line n, and goes on. Later steps of the
killed run are computed again, with the same bits. A step whose file is damaged, or belongs to another run, is computed
again in the same way, from the state before it.

Giving a run more steps.

For a finished run, the files in steps/ are written again, then the manifest says "training" with the new number of
steps, and only then the stacked files are removed. An unfinished run only gets the new number. Training then goes on
from the same state and gives the same bits as a run that had that many steps from the start.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.errors import DamagedError
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.trajectory import manifest as manifests
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.durable import Appender, Piece, make_folder, piece_of, remove_parts
from induction_memory.trajectory.layout import (
    FROZEN,
    GRAFTS,
    LATEST,
    MANIFEST,
    METRICS,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    ROUNDED,
    STEPS,
    TRAINED,
    step_path,
    stored_steps,
)
from induction_memory.trajectory.lock import tidy
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.states import checksum, stored_names
from induction_memory.trajectory.tensors import SealedFile, rounded_steps, write_stack, write_tensors


def compact(folder: Path, steps: Sequence[int], run: str | None) -> dict[str, Piece]:
    """Write the stacked files of a run from the files of its steps; return their pieces and that of the metrics."""
    opened = cache(lambda step: SealedFile.open_step(step_path(folder, step), run, step))
    with_optimizer = [s for s in steps if any(n.startswith(OPTIMIZER_PREFIX) for n in opened(s).entries)]

    def stack(target: str, prefix: str, chosen: Sequence[int]) -> Piece:
        def read(name: str, step: int) -> Tensor:
            return opened(step).read(prefix + name)

        names = [n for n in opened(chosen[-1]).entries if n.startswith(OPTIMIZER_PREFIX) == bool(prefix)]
        first = {n.removeprefix(prefix): opened(chosen[-1]).entries[n] for n in names}
        return write_stack(folder / target, chosen, first, read)

    return {
        TRAINED: stack(TRAINED, "", steps),
        OPTIMIZER: stack(OPTIMIZER, OPTIMIZER_PREFIX, with_optimizer),
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
    whole = SealedFile.open_piece(folder / FROZEN, manifest.pieces.get(FROZEN))
    frozen = {name: whole.read(name) for name in whole.entries}
    grafts: dict[Graft, Tensor] = {}
    if config.train.graft_rules:
        file = SealedFile.open_piece(folder / GRAFTS, manifest.pieces.get(GRAFTS))
        grafts = {rule: file.read(str(i)) for i, rule in enumerate(config.train.graft_rules)}
    rows, ends = row_files.intact(folder / METRICS, manifest.first_step, manifest.key)
    notes = _drop_from_first_damage(folder, manifest, rows)
    step, tensors = _latest_state(folder, manifest, len(rows), notes)
    done = step - manifest.first_step
    optimizer = {n.removeprefix(OPTIMIZER_PREFIX): t for n, t in tensors.items() if n.startswith(OPTIMIZER_PREFIX)}
    moving = {n: t for n, t in tensors.items() if not n.startswith(OPTIMIZER_PREFIX)}
    size = ends[done - 1] if done else 0
    return ResumePoint(step, frozen | moving, optimizer, grafts, rows[:done], size, tuple(dict.fromkeys(notes)))


def _drop_from_first_damage(folder: Path, manifest: Manifest, rows: list[dict[str, Any]]) -> list[str]:
    """Find the first kept step whose file is damaged, and drop the rows from it on, so that it is computed again.

    Returns what is wrong with that file.
    """
    rounded = rounded_steps(folder, manifest)
    for done, row in enumerate(rows):
        if row["checkpoint"] and row["step"] not in rounded:
            try:
                file = SealedFile.open_step(step_path(folder, row["step"]), manifest.identity, row["step"])
                damage = file.damage()
            except DamagedError as error:
                damage = error
            if damage is not None:
                del rows[done:]
                return [str(damage)]
    return []


def _latest_state(folder: Path, manifest: Manifest, done: int, notes: list[str]) -> tuple[int, dict[str, Tensor]]:
    """The latest intact state that includes the optimiser's and all metrics before it; adds damage to `notes`."""
    candidates = [(folder / LATEST, None), *((step_path(folder, s), s) for s in reversed(stored_steps(folder)))]
    best: tuple[int, dict[str, Tensor]] | None = None
    for path, step in candidates:
        if best is not None and step is not None and step <= best[0]:
            break
        if not path.exists():
            continue
        try:
            file = SealedFile.open_step(path, manifest.identity, step)
            held = any(name.startswith(OPTIMIZER_PREFIX) for name in file.entries)
            if held and manifest.first_step <= file.steps[0] <= manifest.first_step + done:
                best = file.steps[0], {name: file.read(name) for name in file.entries}
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


def why_not_longer(folder: Path, manifest: Manifest, longer: RunConfig) -> Iterator[str]:
    """Reasons why the run in `folder` is not the beginning of the longer run."""
    train = RunConfig.from_dict(manifest.config).train
    before, after = ({s for s in t.checkpoint_rule.fixed if s < train.steps} for t in (train, longer.train))
    if train.schedule != "constant":
        yield f"its {train.schedule} decay ends at step {train.steps}"
    if before != after:
        yield f"with more steps, {train.checkpoints!r} keeps other steps before {train.steps}"
    if manifest.state != "finished":
        return
    rows = row_files.of(folder, manifest)
    steps = SealedFile.open_piece(folder / TRAINED, manifest.pieces.get(TRAINED)).steps
    if [row["step"] for row in rows if row["checkpoint"]] != sorted({*steps, *rounded_steps(folder, manifest)}):
        yield "some of its steps were left out"
    state = manifest.pieces.get(OPTIMIZER)
    if state is None or not steps or steps[-1] not in SealedFile.open_piece(folder / OPTIMIZER, state).steps:
        yield "it was kept without its optimiser's state"
    if train.grafts and GRAFTS not in manifest.pieces:
        yield "it was kept without the matrices of its grafts"


def lengthen(folder: Path, manifest: Manifest, config: RunConfig, command: str | None) -> None:
    """Give the run in `folder` more steps, without changing the step that it has reached."""
    seconds, pieces = manifest.seconds, {n: p for n, p in manifest.pieces.items() if n in (FROZEN, GRAFTS, ROUNDED)}
    for name, piece in pieces.items():
        damage = SealedFile.open_piece(folder / name, piece).damage()
        if damage is not None:
            raise damage
    if manifest.state == "training":
        seconds = spent(folder, manifest)
    else:
        _unpack(folder, manifest)
    command = command or manifest.command
    manifest.replace(
        state="training", config=config.to_dict(), rows=None, seconds=seconds, pieces=pieces, command=command
    ).write(folder)
    for name in (TRAINED, OPTIMIZER):
        (folder / name).unlink(missing_ok=True)


def _unpack(folder: Path, manifest: Manifest) -> None:
    """The files of single steps, from the stacked ones."""
    weights, optimizer = (SealedFile.open_piece(folder / n, manifest.pieces.get(n)) for n in (TRAINED, OPTIMIZER))
    make_folder(folder / STEPS)
    for step in weights.steps:
        held = optimizer.entries if step in optimizer.steps else ()
        moving = {name: weights.read_step(name, step) for name in weights.entries}
        state = {name: optimizer.read_step(name, step) for name in held}
        write_state(step_path(folder, step), manifest, step, moving, state)
        if step == weights.steps[-1]:  # training on writes its file again, perhaps without the optimiser's state
            write_state(folder / LATEST, manifest, step, moving, state)
