"""A smaller trajectory out of a larger one: chosen steps, the metrics whole, no optimiser state.

Also the way of a folder of plain state dicts into this package's format: thinned to all of its steps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from induction_memory.errors import require
from induction_memory.task import registry
from induction_memory.trajectory import manifest as manifests
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.durable import make_folder, write_durably
from induction_memory.trajectory.folder import FolderSource
from induction_memory.trajectory.layout import FROZEN, OPTIMIZER, TRAINED
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.sealed import describe, write_stack, write_tensors
from induction_memory.trajectory.states import stored_names
from induction_memory.trajectory.trajectory import Trajectory, load


def thin(
    run: Trajectory,
    out: str | Path,
    steps: Sequence[int] | None = None,
    *,
    keep_optimizer: bool = False,
    command: str | None = None,
) -> Trajectory:
    """Write the chosen steps of a run (all of them when not given) as a finished trajectory to the folder `out`."""
    folder, source = Path(out), run.source
    require(not folder.exists() or not any(folder.iterdir()), "out", "a new or an empty folder", repr(str(folder)))
    chosen = sorted({run.resolve(int(step)) for step in (run.steps if steps is None else steps)})
    require(bool(chosen), "steps", "at least one step", "none")
    rows = source.rows()
    frozen = stored_names(run.model_config, source.frozen)
    moving = stored_names(run.model_config, source.moving)
    first = {name: describe(name, source.read_step(name, chosen[0])) for name in moving}

    make_folder(folder)
    pieces = {
        FROZEN: write_tensors(folder / FROZEN, {name: source.read_frozen(name) for name in frozen}),
        TRAINED: write_stack(folder / TRAINED, chosen, first, source.read_step),
    }
    if keep_optimizer:
        states = {step: state for step in chosen if (state := source.optimizer(step)) is not None}
        require(bool(states), "keep_optimizer", "steps whose optimiser state is stored", "none")
        names = {name: describe(name, value) for name, value in states[max(states)].items()}

        def read(name: str, step: int) -> Tensor:
            return states[step][name]

        pieces[OPTIMIZER] = write_stack(folder / OPTIMIZER, list(states), names, read)
    if rows:
        pieces[row_files.NAME] = write_durably(folder / row_files.NAME, (row_files.encode(row) for row in rows))
    Manifest(
        state="finished",
        config=_config(run),
        first_step=rows[0]["step"] if rows else chosen[0],
        parent=run.parent,
        rows=len(rows),
        pieces=pieces,
        **_provenance(run, command),
    ).write(folder)
    return load(folder)


def _config(run: Trajectory) -> dict[str, Any]:
    task = run.source.task
    return {
        "task": None if task is None else registry.to_dict(task),
        "model": run.model_config.to_dict(),
        "train": run.source.train.to_dict(),
    }


def _provenance(run: Trajectory, command: str | None) -> dict[str, Any]:
    """What computed the numbers: the run's own provenance where it has one."""
    if not isinstance(run.source, FolderSource):
        return manifests.provenance(command, None)
    kept = run.source.manifest
    return {
        "versions": kept.versions,
        "command": command or kept.command,
        "created": kept.created,
        "seconds": kept.seconds,
        "threads": kept.threads,
    }
