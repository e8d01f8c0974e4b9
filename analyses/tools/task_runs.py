"""The small runs on the other tasks: train, measure the distance to each predictor, and ship a few steps of each.

The steps that are kept divide the path of the distance curves evenly (`shipping.telling_steps`), as many as fit into
`MEGABYTES`, unless `CHOSEN` names them. The distances at all stored steps are kept as a table, because the curves need
more steps than ship.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from induction_memory.experiment.presets import OTHER_TASKS
from induction_memory.probes.predictors import phases_of, predictor_distances
from induction_memory.task.predictors import Phase
from induction_memory.training.run import start
from induction_memory.trajectory.search import SHIPPED
from induction_memory.trajectory.thinning import thin
from induction_memory.trajectory.trajectory import Trajectory

from .shipping import telling_steps

MEGABYTES = {"factual-recall": 3.4}
"""Largest size of a run's shipped weights, 1.3 if not listed. The metrics, without norms, come in addition."""
ROUNDED = ("factual-recall", "markov-2")
"""Runs with many steps, of which all but the last are rounded (`trajectory/tensors.py`)."""
CHOSEN = {"noisy-triggers-beside": (0, 160, 500, 2000)}
"""Steps that ship because the documentation shows an ablation at them."""
MOST_STEPS = 16
LARGEST = 2.0
"""When steps are chosen, distances above this many nats count as this many."""

TWINS = {
    "noisy-triggers": "clean",
    "noisy-triggers-beside": "clean",
    "copying-middle": "elsewhere",
    "copying-any": "elsewhere",
}
"""Preset -> the variant on which distances are shown beside those on the task."""


@dataclass(frozen=True, eq=False)
class TaskRun:
    """One run with its distances: on the task, and on the variant that is shown beside it."""

    run: Trajectory
    distances: dict[str, pd.DataFrame]
    """`task`, and the variant's name where there is one: one row per stored step, one column per predictor."""

    @property
    def phases(self) -> dict[str, list[Phase]]:
        return {name: phases_of(table) for name, table in self.distances.items()}


def train_task(preset: str, runs: Path) -> TaskRun:
    """The run of a preset in `runs`, trained if it is missing, with its distances."""
    config = OTHER_TASKS[preset][1].with_settings(["train.threads=1"])
    command = f"induction-memory train {preset} --out runs/{preset} --set train.threads=1"
    run = start(config, runs / preset, resume=(runs / preset).exists(), progress=False, command=command)
    found = {"task": predictor_distances(run)}
    if preset in TWINS:
        found[TWINS[preset]] = predictor_distances(run, variant=TWINS[preset])
    return TaskRun(run, found)


def ship_task(preset: str, found: TaskRun, out: Path = SHIPPED) -> Trajectory:
    """Write the steps that ship to `out/preset`, and replace what was there."""
    run, curves = found.run, np.minimum(found.distances["task"].to_numpy(), LARGEST)
    each = 4 * sum(run.read_step(name, int(run.steps[0])).numel() for name in run.moving)
    count = int(min(MOST_STEPS, max(2, MEGABYTES.get(preset, 1.3) * 1e6 // each)))
    steps = CHOSEN.get(preset) or telling_steps(run.steps, curves, count).tolist()
    if (out / preset).exists():
        shutil.rmtree(out / preset)
    return thin(run, out / preset, list(steps), keep_norms=False, rounded=preset in ROUNDED)
