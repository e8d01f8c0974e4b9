"""Four heads per layer: which head does what, in how many of the runs? Makes docs/heads.md and its figures.

    python analyses/multihead.py                      five seeds of the preset heads, two at a time
    python analyses/multihead.py --no-train           tables and figures of the runs that are there
    python analyses/multihead.py --siblings 2         and seed 0 twice with other data, twice with other weights
    python analyses/multihead.py --name figure-11     the same in Figure 11's batches of 512: four times as long
    python analyses/multihead.py --ship               and keep the tables in checkpoints/records/heads
    python analyses/multihead.py --shipped            the page again from those, without any run

What is trained is kept: an interrupted run goes on, a finished one is read. Each trains with one thread.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: the processes share the cores

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from induction_memory.errors import require, run_script
from induction_memory.experiment.presets import preset
from induction_memory.sweep.job import Job, path_of
from induction_memory.sweep.loop import engine, work_off
from induction_memory.sweep.plan import cost

if TYPE_CHECKING:
    from tools.heads_study import HeadStudy

Settings = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PART.FIELD=VALUE ...")
]


def main(
    out: Path = Path("runs/paper"),
    docs: Path = Path("docs"),
    seeds: int = 5,
    siblings: int = 0,
    workers: int = 2,
    name: str = "heads",
    set: Settings = (),
    readings: int = 24,
    sequences: int = 32,
    train: bool = True,
    ship: bool = False,
    shipped: bool = False,
) -> None:
    """Train the runs that are missing, examine their heads, and write docs/heads.md.

    Args:
        out: folder of the runs and their tables.
        docs: folder of the page.
        seeds: number of independent runs.
        siblings: retrainings of seed 0, as many with other data as with other initial weights.
        workers: runs at a time, each with one thread.
        name: the experiment.
        set: change its settings, as in model.d_model=64 task.k=3.
        readings: steps of each run at which the heads are examined.
        sequences: sequences they are examined on.
        train: train what is missing.
        ship: write the tables to the folder of records that ship.
        shipped: make the page from those tables, and train nothing.
    """
    from induction_memory.heads.identification import Identification
    from induction_memory.paper import records
    from induction_memory.trajectory.search import SHIPPED
    from tools import heads_study

    if shipped:
        _write_page(heads_study.read(SHIPPED / records.HEADS), docs)
        return

    require(seeds >= 2, "seeds", "2 or more to compare", seeds)
    require(workers >= 1, "workers", "1 or more", workers)
    config = preset(name).config.with_settings([setting for group in set for setting in group])
    runs = {f"{name}-{end}": run for end, run in heads_study.plan(config, seeds, siblings).items()}
    same = {"out": str(out), "train": train, "readings": readings, "sequences": sequences}
    jobs = [
        Job(
            name=run_name,
            work=path_of(heads_study.train_and_examine),
            arguments={"name": run_name, "config": run.to_dict()} | same,
            folder=out / run_name,
            steps=run.train.steps,
            cost=cost(run),
        )
        for run_name, run in runs.items()
    ]
    for run_name, outcome in work_off(jobs, engine(min(workers, len(jobs)))).items():
        require(outcome.state == "done", run_name, "to be trained and examined", outcome.error)
    tables = [folder for run_name in runs if (folder := out / heads_study.TABLES / run_name).joinpath("key").exists()]
    require(len(tables) >= 2, "out", f"two or more finished runs in {out}", len(tables))
    found = Identification.join([Identification.read(folder) for folder in tables])
    accuracies = {folder.name: heads_study.last_accuracy(out / folder.name) for folder in tables}
    made = heads_study.HeadStudy(found, config, _command(seeds, siblings, name), accuracies)
    if ship:
        heads_study.write(made, SHIPPED / records.HEADS)
    _write_page(made, docs)


def _command(seeds: int, siblings: int, name: str) -> str:
    """What trains these runs, without the options that only say where and how fast."""
    options = {"--seeds": (seeds, 5), "--siblings": (siblings, 0), "--name": (name, "heads")}
    said = [f"{option} {value}" for option, (value, default) in options.items() if value != default]
    return " ".join(["python analyses/multihead.py", *said])


def _write_page(made: "HeadStudy", docs: Path) -> None:
    from induction_memory.paper import records
    from induction_memory.trajectory.search import SHIPPED
    from tools import heads_study

    heads_study.draw(made.found, docs / "heads")
    written = docs / "heads.md"
    written.write_text(made.page(SHIPPED / records.FOLDER), encoding="utf-8")
    print(f"{written}: {len(made.found.runs)} runs")


if __name__ == "__main__":
    run_script(main, __doc__)
