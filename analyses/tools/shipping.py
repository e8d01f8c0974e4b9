"""What ships: the records of all runs, and a few trajectories thinned to the steps where something happens.

The steps divide the path of the curves (in-context accuracy and the recalls) evenly. The length of the path is the sum
over stored steps of the largest change in any curve, plus a small term for elapsed steps, so that flat stretches keep
some steps too. If the run has kept the optimiser's state of the last step, it ships as well: a copy of what ships can
then be given more steps (`induction-memory train PRESET --out COPY --set train.steps=N --resume`). A run may be a
branch of one that shipped before; its record then begins with the record of that run. For the larger models all shipped
steps except the last are rounded (`trajectory/tensors.py`), and their metrics lack the norms, as the records of all
runs do: no figure and no claim reads them.
"""

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.errors import require
from induction_memory.experiment.presets import OTHER_TASKS, preset
from induction_memory.files import write_file
from induction_memory.paper import records
from induction_memory.paper.auditing import AGREE, distance, of_exact_steps
from induction_memory.paper.measurement import make_record, provenance
from induction_memory.paper.plan import FIGURES, TRAJECTORIES, jobs
from induction_memory.paper.records import Record, continued
from induction_memory.paper.reproducing import gather
from induction_memory.terminal import markdown
from induction_memory.trajectory.search import SHIPPED
from induction_memory.trajectory.thinning import thin
from induction_memory.trajectory.trajectory import Trajectory, load

PATIENCE = 0.5
"""Weight of all steps of training together, relative to a recall that goes from 0 to 1."""
STEPS = {
    "random-triggers": 30,
    "fixed-triggers": 24,
    "frozen-keys": 24,
    "induction-alone": 24,
    "four-heads": 22,
    "layernorm-mlp": 22,
    "vanilla-fixed": 3,
    "vanilla-random": 4,
}
"""How many steps of a trajectory ship."""
SMALL = ("four-heads", "layernorm-mlp", "vanilla-fixed", "vanilla-random")
"""Trajectories that ship with all steps but the last rounded, and without the norms of weights and gradients."""


def telling_steps(
    steps: Int[np.ndarray, " step"], curves: Float[np.ndarray, "step curve"], count: int
) -> Int[np.ndarray, " kept"]:
    """At most `count` of the steps that divide the path of the curves evenly, with the last and then the first."""
    changes = np.abs(np.diff(curves, axis=0)).max(1) + PATIENCE * np.diff(steps) / max(steps[-1] - steps[0], 1)
    path = np.concatenate([[0.0], np.cumsum(changes)])
    marks = np.linspace(path[-1], 0, count)
    return steps[np.unique(np.abs(path[:, None] - marks).argmin(0))]


def ship(runs: Path, out: Path = SHIPPED) -> list[str]:
    """Write what has been trained at the paper's scale in `runs/paper` to `out`; returns the names of what it wrote."""
    found = gather(jobs(list(FIGURES), "paper"), runs / "paper", train=False)
    for name, record in found.items():
        place = out / records.FOLDER / name
        if load(runs / "paper" / name).parent is not None:
            record = continued(records.read(place), record)
        records.write(record, place)
    records.seal_records(out / records.FOLDER)
    written = []
    for name, preset_name in TRAJECTORIES.items():
        if f"{preset_name}-seed-0" not in found:
            continue
        record = found.one(preset_name)
        if (out / name).exists():
            if load(out / name).config == record.config:
                continue
            shutil.rmtree(out / name)
        chosen = telling_steps(record.probes.index.to_numpy(), _curves(record), STEPS[name])
        run = load(runs / "paper" / record.name)
        resumable = run.stored_optimizer(int(run.steps[-1])) is not None
        optimizer = "last" if resumable else False
        kept, small = chosen.tolist(), name in SMALL
        thin(run, out / name, kept, keep_optimizer=optimizer, keep_norms=not small, rounded=small)
        written.append(name)
    write_file(out / "README.md", index(out))
    return written


def complete(names: Sequence[str] | None = None, out: Path = SHIPPED) -> list[str]:
    """Measure shipped trajectories again (all, or those named), and add new measures of the last step to their records.

    A record whose numbers differ from its trajectory is refused. Returns the names of the records that grew.
    """
    folder, grown = out / records.FOLDER, []
    for name in TRAJECTORIES if names is None else names:
        place = folder / f"{TRAJECTORIES[name]}-seed-0"
        if not (out / name).exists() or not (place / records.FILES[0]).exists():
            continue
        kept, run = records.read(place), load(out / name)
        anew = of_exact_steps(run, make_record(run, kept.name))
        away, where = distance(kept, anew)
        require(away <= AGREE, name, f"the numbers of its record within {AGREE}", f"{away:.3g} ({where})")
        last, errors = {**anew.last, **kept.last}, {**anew.errors, **kept.errors}
        if last.keys() != kept.last.keys() or errors.keys() != kept.errors.keys():
            records.write(replace(kept, last=last, errors=errors), place)
            grown.append(kept.name)
    records.seal_records(folder)
    return grown


def index(folder: Path) -> str:
    """The page that lists what is there."""
    about = (
        "`induction_memory.load(NAME)` opens one, and every command takes its name. They are first repetitions of "
        "presets at the paper's scale, thinned to the steps where something happens; every step has its metrics. "
        "Rounded steps have each weight within 0.05 % of the root mean square of its parameter; the last step is "
        "always exact. A run with its optimiser's state can be trained further to the same bits. "
        "`records/` holds the metrics and the memory recall of every run of the reproduction, with checksums in "
        "`SHA256SUMS`. `induction-memory reproduce --check` measures the paper's claims anew where the trajectories "
        "allow it, and takes the other numbers from the records. Written by `python analyses/ship_checkpoints.py`."
    )
    rows = []
    for name, preset_name in TRAJECTORIES.items():
        if (folder / name).exists():
            run = load(folder / name)
            about_preset, made_by = preset(preset_name).about, f"`{provenance(run)[0]}`"
            size = f"{_megabytes(folder / name):.1f}"
            optimizer = "kept" if run.stored_optimizer(int(run.steps[-1])) is not None else ""
            rows.append((f"`{name}`", preset_name, about_preset, _range(run), optimizer, size, made_by))
    columns = ["name", "preset", "what it is", "steps kept", "optimiser", "MB", "made by"]
    table = pd.DataFrame(rows, columns=columns)
    page = f"# Trained trajectories\n\n{textwrap.fill(about, 120)}\n\n{markdown(table)}\n"
    others = [
        (f"`{name}`", about, _range(load(folder / name)), f"{_megabytes(folder / name):.1f}")
        for name, (about, _) in OTHER_TASKS.items()
        if (folder / name).exists()
    ]
    if not others:
        return page
    source = "Small runs of the presets of the same names (docs/tasks.md), written by `python analyses/tasks.py`."
    table = pd.DataFrame(others, columns=["name", "what it is", "steps kept", "MB"])
    return f"{page}\n## Other tasks\n\n{source}\n\n{markdown(table)}\n"


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) / 1e6


def _range(run: Trajectory) -> str:
    steps, rounded = run.steps, f" ({len(run.rounded)} rounded)" if len(run.rounded) else ""
    return f"{len(steps)}, {steps[0]} to {steps[-1]}{rounded}" if len(steps) > 1 else f"the last, {steps[-1]}"


def _curves(record: Record) -> Float[np.ndarray, "step curve"]:
    names = [name for name in ("W_O2", "W_K2", "W_K1_first64") if name in record.probes]
    names += [f"{name}_max" for name in ("W_O2", "W_K2", "W_K1_first64") if f"{name}_max" in record.probes]
    steps, accuracy = record.curve("accuracy_in_context")
    smooth = np.convolve(np.pad(accuracy, 2, mode="edge"), np.full(5, 0.2), "valid")
    at_stored = np.interp(record.probes.index.to_numpy(), steps, smooth)
    return np.column_stack([at_stored, *(record.probes[name].to_numpy() for name in names)])
