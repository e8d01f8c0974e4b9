"""The main job, small: an induction head is born, probed and drawn.

Trains the preset `demo` from nothing, stores its trajectory, prints how loss, accuracy and the three memories moved,
says when each was born, and draws the curves.
"""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd

from induction_memory import probes
from induction_memory.errors import require
from induction_memory.figures.curves import birth
from induction_memory.presets import preset
from induction_memory.tables import show
from induction_memory.training.run import start
from induction_memory.trajectory.trajectory import Trajectory

MEMORIES = ["W_O2", "W_K2", "W_K1"]
BORN = 0.5
"""A memory is called born at the first stored step from which it keeps recalling half of its pairs."""


def run(out: Path, quiet: bool = False) -> Trajectory:
    """Train, probe and draw into `out`, which is made anew if it holds an earlier demo."""
    chosen = preset("demo")
    trajectory_folder, picture = out / "trajectory", out / "curves.png"
    if out.exists():
        require(
            not any(out.iterdir()) or trajectory_folder.is_dir(),
            "--out",
            "a new folder, or an earlier demo's",
            str(out),
        )
        shutil.rmtree(out)
    out.mkdir(parents=True)
    print(f"Training {chosen.about} ...")
    trajectory = start(chosen.run, trajectory_folder, quiet=quiet, command="induction-memory demo")
    metrics = trajectory.metrics
    recalls = probes.recall(trajectory)
    print("\nHow it moved (loss and accuracy on the fresh batch of that step, recall of the stored memory):\n")
    show(summary(metrics, recalls))
    for name in MEMORIES:
        step = born(recalls, name)
        print(f"{name} recalls half of its pairs " + (f"from step {step} on" if step is not None else "never"))
    birth(metrics, recalls, "birth of an induction head").savefig(picture, dpi=130)
    print(f"\nfigure      {picture}\ntrajectory  {trajectory_folder}  (open it with induction_memory.load)")
    return trajectory


def summary(metrics: pd.DataFrame, recalls: pd.DataFrame, rows: int = 9) -> pd.DataFrame:
    """Some steps evenly over the run, each with the step's loss, accuracy and recalls."""
    stored = recalls.index.intersection(metrics["step"].to_numpy())
    steps = stored[[round(i * (len(stored) - 1) / (rows - 1)) for i in range(rows)]]
    chosen = metrics.set_index("step").loc[steps, ["loss_in_context", "accuracy_in_context"]]
    return chosen.join(recalls[MEMORIES]).reset_index()


def born(recalls: pd.DataFrame, name: str) -> int | None:
    """First step from which the recall stays at half or more."""
    low = np.flatnonzero(recalls[name].to_numpy() < BORN)
    first = low[-1] + 1 if len(low) else 0
    return int(recalls.index[first]) if first < len(recalls) else None
