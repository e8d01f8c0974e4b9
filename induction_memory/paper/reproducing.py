"""The whole reproduction: train missing runs, measure, draw, judge, and write the page.

Runs are in `folder/NAME`, their records in `folder/records/NAME`. Missing runs are trained a few at a time, with one
thread each. An interrupted run, or one with fewer steps, continues where it stopped. A finished run is only read. A
record is remade if its trajectory has changed. At the paper's scale the records of all runs and the trajectories of
some ship with the repository; `auditing.audit` judges the claims from these alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import require_folder, write_file
from induction_memory.paper.auditing import with_shipped
from induction_memory.paper.claims import CLAIMS, check
from induction_memory.paper.drawing import Material, draw
from induction_memory.paper.plan import TRAJECTORIES, PaperRun, Scale, describe, jobs
from induction_memory.paper.records import FILES, FOLDER, MissingRunError, Record, Records, read, write
from induction_memory.paper.reproduction_page import page
from induction_memory.sweep.job import Job, path_of
from induction_memory.sweep.loop import engine, require_workers, work_off
from induction_memory.sweep.plan import cost
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import SHIPPED
from induction_memory.trajectory.trajectory import Trajectory, load


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The results: records, verdicts, drawn figures, and the reasons for missing ones."""

    records: Records
    verdicts: pd.DataFrame
    pictures: dict[int, list[Path]]
    reasons: dict[int, str]
    page: Path


def reproduce(
    chosen: Sequence[int],
    scale: Scale,
    *,
    runs: Path = Path("runs"),
    out: Path = Path("reproduction"),
    workers: int = 2,
    train: bool = True,
    progress: "Progress" = None,
) -> Reproduction:
    """Figures and claims at a scale, from runs in `runs/SCALE`, into `out`: a page and a folder of pictures.

    Without training, shipped records and trajectories replace missing runs of the paper's scale.
    """
    require_workers(workers)
    out = require_folder(out, "--out")
    folder, planned = require_folder(Path(runs) / scale, "--runs"), jobs(chosen, scale)
    records = gather(planned, folder, workers=workers, train=train, progress=progress)
    if not train and scale == "paper":
        records = with_shipped(records, planned)
    by_preset = {job.preset: job for job in planned if job.seed == 0}
    given = Material(records, lambda preset: _trained(by_preset[preset], folder, records), describe(scale))
    pictures, reasons = {}, {}
    for figure in chosen:
        try:
            pictures[figure] = draw(figure, given, out / "reproduction")
        except MissingRunError as missing:
            reasons[figure] = str(missing)
    wanted = [claim.name for claim in CLAIMS.values() if claim.figure in chosen]
    verdicts = check(records, wanted)
    links = {figure: [path.relative_to(out).as_posix() for path in paths] for figure, paths in pictures.items()}
    written = out / "reproduction.md"
    write_file(written, page(chosen, scale, records, verdicts, links, reasons), "--out")
    return Reproduction(records, verdicts, pictures, reasons, written)


def _trained(job: PaperRun, folder: Path, records: Records) -> Trajectory:
    """The trajectory of a record: the run's, or the shipped one."""
    shipped = [SHIPPED / name for name, preset in TRAJECTORIES.items() if preset == job.preset]
    for place in (folder / job.name, *shipped):
        if job.name in records and (place / "manifest.json").exists():
            run = load(place)
            if run.finished and run.config == job.config:
                return run
    raise MissingRunError(job.name)


def gather(
    jobs: Sequence[PaperRun], folder: Path, *, workers: int = 2, train: bool = True, progress: "Progress" = None
) -> Records:
    """The records of all jobs, after training the runs that are missing or unfinished.

    With `train` False these are left out.
    """
    found = {job.name: record for job in jobs if (record := _stored(job, folder)) is not None}
    missing = [job for job in jobs if job.name not in found]
    if not train:
        missing = [job for job in missing if _is_finished(job, folder)]
    if missing:
        found |= _work(missing, folder, min(workers, len(missing)), progress)
    return Records([found[job.name] for job in jobs if job.name in found])


def _work(jobs: Sequence[PaperRun], folder: Path, workers: int, progress: Progress) -> dict[str, Record]:
    """Train and measure as a sweep: failed runs are reported at the end."""
    ended = work_off([_sweep_job(job, folder) for job in jobs], engine(workers), progress=progress)
    failed = [f"{folder / name}: {outcome.error}" for name, outcome in ended.items() if outcome.state != "done"]
    if failed:
        others = f"; {len(failed) - 1} more runs failed" if len(failed) > 1 else ""
        raise InputError(failed[0] + others)
    return {job.name: read(folder / FOLDER / job.name) for job in jobs}


def _sweep_job(job: PaperRun, folder: Path) -> Job:
    arguments = {"name": job.name, "config": job.config.to_dict(), "folder": str(folder), "command": job.command}
    place, steps = folder / job.name, job.config.train.steps
    return Job(job.name, path_of(train_and_record), arguments, place, steps, cost(job.config))


def train_and_record(name: str, config: dict[str, Any], folder: str, command: str) -> None:
    """Train or resume a run and write its record. A finished run, which may be a branch, is only measured."""
    from induction_memory.paper.measurement import make_record
    from induction_memory.training.run import start

    place, asked = Path(folder), RunConfig.from_dict(config)
    run = load(place / name) if (place / name / "manifest.json").exists() else None
    if run is None or not run.finished or run.config != asked:
        run = start(asked, place / name, resume="or start", progress=False, command=command)
    write(make_record(run, name), place / FOLDER / name)


def _stored(job: PaperRun, folder: Path) -> Record | None:
    """The record of a run, if there is one and the run has not changed since."""
    place = folder / FOLDER / job.name
    if not (place / FILES[0]).exists() or not _is_finished(job, folder):
        return None
    record = read(place)
    return record if record.fingerprint == load(folder / job.name).fingerprint else None


def _is_finished(job: PaperRun, folder: Path) -> bool:
    if not (folder / job.name / "manifest.json").exists():
        return False
    run = load(folder / job.name)
    differences = job.config.differences(run.config)
    for path, (asked, there) in differences.items():
        if path != "train.steps" or asked < there:
            raise InputError(f"{folder / job.name}: expected {path} = {asked!r}, as in {job.preset}, got {there!r}")
    return run.finished and not differences
