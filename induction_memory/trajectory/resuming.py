"""From which step a killed run resumes.

Whenever a file with the state of step n exists, the metrics of all steps before n are on the disk (`writer.py`).
Resuming takes the latest such state that is intact, cuts the metrics before line n, and goes on. Later steps of the
killed run are computed again, with the same bits. A step whose file is damaged, or belongs to another run, is computed
again in the same way, from the state before it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.errors import DamagedError
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.layout import (
    FROZEN,
    GRAFTS,
    LATEST,
    METRICS,
    OPTIMIZER_PREFIX,
    step_path,
    stored_steps,
)
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.rounded import rounded_steps
from induction_memory.trajectory.sealed import SealedFile


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
