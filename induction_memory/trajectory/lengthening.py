"""Giving a run more steps.

For a finished run, the files in steps/ are written again, then the manifest says "training" with the new number of
steps, and only then the stacked files are removed. An unfinished run only gets the new number. Training then goes on
from the same state and gives the same bits as a run that had that many steps from the start.
"""

from collections.abc import Iterator
from pathlib import Path

from induction_memory.experiment.run_config import RunConfig
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.durable import make_folder
from induction_memory.trajectory.layout import FROZEN, GRAFTS, LATEST, OPTIMIZER, ROUNDED, STEPS, TRAINED, step_path
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.rounded import rounded_steps
from induction_memory.trajectory.sealed import SealedFile
from induction_memory.trajectory.writer import spent, write_state


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
