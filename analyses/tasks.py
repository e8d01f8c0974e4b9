"""Train the small runs on the other tasks, draw how far each is from its predictors, and ship a few steps of each.

    python analyses/tasks.py                      all of them, some two minutes of one thread each
    python analyses/tasks.py --only markov-1

Writes runs/tasks (whole), checkpoints/NAME (thinned) and its line in checkpoints/README.md, docs/tasks/NAME.csv and
docs/tasks/NAME.png.
"""

from pathlib import Path

from induction_memory.errors import run_script


def main(only: tuple[str, ...] = (), runs: Path = Path("runs/tasks"), docs: Path = Path("docs/tasks")) -> None:
    """Train, measure, draw and ship.

    Args:
        only: names of presets; all when not given.
        runs: folder of the whole runs.
        docs: folder of tables and figures.
    """
    import pandas as pd

    from induction_memory.experiment.presets import OTHER_TASKS
    from induction_memory.files import write_file
    from induction_memory.task.predictors import describe
    from induction_memory.trajectory.search import SHIPPED
    from induction_memory.views.figures import predictor_figure
    from tools.shipping import index
    from tools.task_runs import ship_task, train_task

    docs.mkdir(parents=True, exist_ok=True)
    for name in only or OTHER_TASKS:
        found = train_task(name, runs)
        shipped = ship_task(name, found)
        pd.concat(found.distances, names=["on"]).round(5).to_csv(docs / f"{name}.csv")
        predictor_figure(found.distances, dict(found.phases)).savefig(docs / f"{name}.png", dpi=120)
        for where, phases in found.phases.items():
            print(f"{name}, on {where}: {describe(phases)}; {len(shipped.steps)} steps kept")
    write_file(SHIPPED / "README.md", index(SHIPPED))


if __name__ == "__main__":
    run_script(main, __doc__)
