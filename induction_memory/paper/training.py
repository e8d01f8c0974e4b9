"""Train missing runs, a few at a time with one thread each, and measure all runs.

Runs are in `folder/NAME`, their records in `folder/records/NAME`. An interrupted run continues where it stopped, and so
does one with fewer steps. A finished run is only read. A record is made again when its trajectory has changed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.paper.plan import Job
from induction_memory.paper.records import FILES, FOLDER, Record, Records, read, write
from induction_memory.sweep.job import Job as SweepJob
from induction_memory.sweep.job import path_of
from induction_memory.sweep.loop import engine, work_off
from induction_memory.sweep.plan import cost


def gather(jobs: Sequence[Job], folder: Path, *, workers: int = 2, train: bool = True, quiet: bool = False) -> Records:
    """The records of all jobs, after training the runs that are missing or unfinished.

    With `train` False those are left out.
    """
    found = {job.name: record for job in jobs if (record := _stored(job, folder)) is not None}
    missing = [job for job in jobs if job.name not in found]
    if not train:
        missing = [job for job in missing if _is_finished(job, folder)]
    if missing:
        found |= _work(missing, folder, min(workers, len(missing)), quiet)
    return Records([found[job.name] for job in jobs if job.name in found])


def trajectory(job: Job, folder: Path):
    """The trajectory of a job that has been trained."""
    from induction_memory.trajectory import load

    return load(folder / job.name)


def _work(jobs: Sequence[Job], folder: Path, workers: int, quiet: bool) -> dict[str, Record]:
    """Train and measure as a sweep: failed runs are reported when the others are done."""
    ended = work_off([_sweep_job(job, folder) for job in jobs], engine(workers), quiet=quiet)
    failed = [f"{folder / name}: {outcome.error}" for name, outcome in ended.items() if outcome.state != "done"]
    if failed:
        others = f"; {len(failed) - 1} more runs failed" if len(failed) > 1 else ""
        raise InputError(failed[0] + others)
    return {job.name: read(folder / FOLDER / job.name) for job in jobs}


def _sweep_job(job: Job, folder: Path) -> SweepJob:
    arguments = {"name": job.name, "config": job.config.to_dict(), "folder": str(folder), "command": job.command}
    place, steps = folder / job.name, job.config.train.steps
    return SweepJob(job.name, path_of(train_and_record), arguments, place, steps, cost(job.config))


def train_and_record(name: str, config: dict[str, Any], folder: str, command: str) -> None:
    """Train or resume a run and write its record. A finished run, which may be a branch, is only measured."""
    from induction_memory.paper.measurement import make_record
    from induction_memory.training.run import start
    from induction_memory.trajectory import load

    place, asked = Path(folder), RunConfig.from_dict(config)
    run = load(place / name) if (place / name / "manifest.json").exists() else None
    if run is None or not run.finished or run.config != asked:
        run = start(asked, place / name, resume="or start", quiet=True, command=command)
    write(make_record(run, name), place / FOLDER / name)


def _stored(job: Job, folder: Path) -> Record | None:
    """The record of a run, if there is one and the run has not changed since."""
    place = folder / FOLDER / job.name
    if not (place / FILES[0]).exists() or not _is_finished(job, folder):
        return None
    record = read(place)
    return record if record.fingerprint == trajectory(job, folder).fingerprint else None


def _is_finished(job: Job, folder: Path) -> bool:
    if not (folder / job.name / "manifest.json").exists():
        return False
    run = trajectory(job, folder)
    differences = job.config.differences(run.config)
    for path, (asked, there) in differences.items():
        if path != "train.steps" or asked < there:
            raise InputError(f"{folder / job.name}: expected {path} = {asked!r}, as in {job.preset}, got {there!r}")
    return run.finished and not differences
