"""`demo`: train until the induction head is born, probe, ablate, draw and show.

Train the preset `demo`, store its trajectory, print loss, accuracy and recalls over training, the birth step of each
memory and its ablation, draw the curves and write the page.
"""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from induction_memory.errors import require
from induction_memory.files import require_folder, write_figure
from induction_memory.terminal import WIDTH, show

if TYPE_CHECKING:
    import pandas as pd

    from induction_memory.trajectory.trajectory import Trajectory

MEMORIES = ["W_O2", "W_K2", "W_K1"]
BORN = 0.5
"""A memory is born at the first stored step from which its recall stays at half or more."""


def demo(out: Path = Path("demo"), quiet: bool = False) -> None:
    """A complete example: train until the induction head is born, probe, draw.

    Args:
        out: folder for the trajectory, the figure and the page; an earlier demo in it is replaced.
        quiet: no progress line.
    """
    trajectory, files = out / "trajectory", (out / "curves.png", out / "page.html")
    ours = {trajectory} if trajectory.is_dir() else set()
    ours |= {path for path in (*files, out / ".lock") if path.is_file()}
    allowed = "a new folder, or an earlier demo's"
    require(not out.exists() or out.is_dir(), "--out", allowed, f"the file {str(out)!r}")
    require_folder(out, "--out")
    others = sorted(path.name for path in out.iterdir() if path not in ours) if out.exists() else []
    require(not others, "--out", allowed, f"{str(out)!r}, which holds {', '.join(others[:1])}")
    from induction_memory.trajectory.lock import locked, strangers

    others = [path.name for path in strangers(trajectory)] if trajectory.is_dir() else []
    require(not others, "--out", allowed, f"{str(trajectory)!r}, which holds {', '.join(others[:1])}")
    with locked(out):  # held to the end, so that a second demo in the same folder is refused
        _run(trajectory, *files, quiet)


def _run(trajectory_folder: Path, picture: Path, page: Path, quiet: bool) -> None:
    from induction_memory import probes
    from induction_memory.experiment.presets import preset
    from induction_memory.training.run import start
    from induction_memory.trajectory.lock import remove
    from induction_memory.views.figures.curves import birth_figure
    from induction_memory.views.run_page import report

    if trajectory_folder.exists():
        remove(trajectory_folder)
    for file in (picture, page):
        file.unlink(missing_ok=True)
    chosen = preset("demo")
    print(textwrap.fill(f"Training {chosen.about} ...", WIDTH))
    trajectory = start(
        chosen.config, trajectory_folder, progress=False if quiet else None, command="induction-memory demo"
    )
    metrics = trajectory.metrics
    recalls = probes.recall(trajectory)
    print("\nLoss and accuracy on the fresh batch of a step, and recall of each memory:\n")
    show(summary(metrics, recalls))
    for name in MEMORIES:
        step = born(recalls, name)
        print(f"{name} recalls half of its pairs " + (f"from step {step} on" if step is not None else "never"))
    print("\nThe last step without each head (zero), or with a memory untrained (initial):\n")
    show(losses(trajectory))
    write_figure(birth_figure(metrics, recalls, "birth of an induction head"), picture, dpi=130)
    report(trajectory, causal_steps=6, title="birth of an induction head", progress=False if quiet else None).save(page)
    print(f"\nfigure      {picture}\npage        {page}  (open it in a browser and move the slider)")
    print(f"trajectory  {trajectory_folder}  (open it with induction_memory.load)")


def summary(metrics: "pd.DataFrame", recalls: "pd.DataFrame", rows: int = 9) -> "pd.DataFrame":
    """Evenly spaced steps of the run, each with the step's loss, accuracy and recalls."""
    stored = recalls.index.intersection(metrics["step"].to_numpy())
    steps = stored[[round(i * (len(stored) - 1) / (rows - 1)) for i in range(rows)]]
    chosen = metrics.set_index("step").loc[steps, ["loss_in_context", "accuracy_in_context"]]
    return chosen.join(recalls[MEMORIES]).reset_index()


def losses(trajectory: "Trajectory") -> "pd.DataFrame":
    """In-context accuracy and loss without a head, or with a trained matrix set back to its initial value."""
    import pandas as pd

    from induction_memory.interventions.ablations import ablate

    without_head = ablate(trajectory, heads="all", kind="zero")
    untrained = ablate(trajectory, components=MEMORIES, kind="initial")
    table = pd.concat([without_head, untrained]).drop_duplicates(["component", "kind"])
    scores = [f"in_context_{name}{error}" for name in ("accuracy", "loss") for error in ("", "_se")]
    return table.loc[:, ["component", "kind", *scores]]


def born(recalls: "pd.DataFrame", name: str) -> int | None:
    """First step from which the recall stays at half or more."""
    import numpy as np

    from induction_memory.memory.recall import first_lasting

    first = first_lasting(recalls[name].to_numpy() >= BORN, recalls.index.to_numpy())
    return None if np.isnan(first) else int(first)
