"""A smaller trajectory from a larger one: chosen steps and all metrics, with the optimiser's state on request.

On request all chosen steps except the last are rounded (`tensors.py`), so they take about a quarter of the space.

Thinning to all steps also converts a folder of plain state dicts to this package's format.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from induction_memory.errors import require
from induction_memory.files import require_folder
from induction_memory.trajectory.export import PlainFolder, configuration
from induction_memory.trajectory.lock import locked, may_begin, tidy
from induction_memory.trajectory.manifest import (
    FROZEN,
    METRICS,
    OPTIMIZER,
    ROUNDED,
    TRAINED,
    Manifest,
    Piece,
    provenance,
    write_piece,
)
from induction_memory.trajectory.rows import encode
from induction_memory.trajectory.search import Steps
from induction_memory.trajectory.tensors import checksum, stored_names, write_rounded, write_tensors
from induction_memory.trajectory.trajectory import Trajectory, load, opened


def thin(
    source: Trajectory | str | Path,
    out: str | Path,
    step: "Steps" = "all",
    *,
    keep_optimizer: bool | Literal["last"] = False,
    keep_norms: bool = True,
    rounded: bool = False,
    command: str | None = None,
) -> Trajectory:
    """Write the chosen steps of a run (by default all) as a finished trajectory to the folder `out`.

    `keep_optimizer="last"` keeps the optimiser's state of the last chosen step; True keeps it for every chosen step
    that has one. A copy with this state at the run's last step can be trained further. `keep_norms=False` drops the
    norms of weights and gradients, which take most of the metrics' space.

    With `rounded` the chosen steps before the last are rounded, each weight to within 0.05 % of its parameter's root
    mean square; `im.load(out).rounded` lists them. The last step and the optimiser's state stay exact. A step that is
    already rounded in the run stays rounded.

    After a kill, call it again: `out` counts as empty until it is complete.

    >>> import tempfile
    >>> import induction_memory as im
    >>> im.thin(im.load("induction-small"), f"{tempfile.mkdtemp()}/ends", [0, 600])
    Trajectory('ends': 2 steps from 0 to 600)
    """
    run = opened(source)
    folder = require_folder(out)
    require(may_begin(folder), "out", "a new or an empty folder", repr(str(folder)))
    chosen = run.choose(step)
    asked = chosen[-1:] if keep_optimizer == "last" else chosen if keep_optimizer else []
    states = {step: state for step in asked if (state := run.stored_optimizer(step)) is not None}
    require(bool(states) or not asked, "keep_optimizer", "steps whose optimiser state is stored", "none")
    initial = run.initial()
    if isinstance(run, PlainFolder):
        made = provenance(command, None)
        kept = Manifest("finished", configuration(run), chosen[0], identity=run.fingerprint, **made)
    else:
        kept = replace(run.manifest, state="finished", command=command or run.manifest.command)
    with locked(folder):
        pieces = _write_weights(run, folder, chosen, rounded)
        rows = [row | {"checkpoint": row["step"] in chosen} for row in run.rows()]
        if not keep_norms:
            rows = [{name: value for name, value in row.items() if "_norm_" not in name} for row in rows]
        if states:
            like, file = states[max(states)], folder / OPTIMIZER
            pieces[OPTIMIZER] = write_tensors(file, like, list(states), read=lambda name, step: states[step][name])
        if rows:
            pieces[METRICS] = write_piece(folder / METRICS, [encode(row, kept.key) for row in rows])
        before = None if initial is None else checksum(run.model_config, initial)
        tidy(folder)  # before the run counts as finished, so that leftovers of an interrupted call do not stay
        replace(kept, pieces=pieces, initial=before).write(folder)
    return load(folder)


def _write_weights(run: Trajectory, folder: Path, steps: Sequence[int], rounded: bool) -> dict[str, Piece]:
    """Write the files of the frozen and of the trained parameters."""
    frozen, moving = (stored_names(run.model_config, names) for names in (run.frozen, run.moving))
    coarse = [step for step in steps if step in run.rounded or (rounded and step != steps[-1])]
    exact = [step for step in steps if step not in coarse]
    like = {name: run.read_step(name, steps[0]) for name in moving}
    pieces = {
        FROZEN: write_tensors(folder / FROZEN, {name: run.read_step(name, steps[0]) for name in frozen}),
        TRAINED: write_tensors(folder / TRAINED, like, exact, read=run.read_step),
    }
    if coarse:
        units = run.rounding.units if run.rounding else {}
        pieces[ROUNDED] = write_rounded(folder / ROUNDED, coarse, moving, run.read_step, units)
    return pieces
