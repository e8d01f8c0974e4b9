"""Train what is missing, a few runs at a time with one thread each, and measure what is there.

Runs lie in `folder/NAME`, their records in `folder/records/NAME`. An interrupted run goes on where it stopped, and so
does one of fewer steps; a finished one is read; a record is made anew when its trajectory has changed.
"""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.reproduction.plan import Job
from induction_memory.reproduction.record_files import FILES, FOLDER, read, write
from induction_memory.reproduction.records import Record, Records

SECONDS_BETWEEN_LOOKS = 1.0


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
    console = Console(stderr=True, highlight=False, quiet=quiet)
    total = sum(cost(job.config) for job in jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"))
    with (
        Progress(*columns, TimeRemainingColumn(elapsed_when_finished=False), console=console) as progress,
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
    ):
        bar = progress.add_task(f"0/{len(jobs)} runs", total=total)
        waiting: dict[Future[None], Job] = {pool.submit(_train_and_record, job, folder): job for job in jobs}
        try:
            while waiting:
                done, _ = wait(waiting, SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
                for future in done:
                    job = waiting.pop(future)
                    future.result()
                    progress.print(f"{job.name} ({len(jobs) - len(waiting)}/{len(jobs)})", markup=False)
                completed = sum(_share(job, folder) * cost(job.config) for job in jobs)
                progress.update(bar, completed=completed, description=f"{len(jobs) - len(waiting)}/{len(jobs)} runs")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {job.name: read(folder / FOLDER / job.name) for job in jobs}


def _train_and_record(job: Job, folder: Path) -> None:
    from induction_memory.reproduction.measurement import make_record
    from induction_memory.training.run import start

    try:
        run = start(job.config, folder / job.name, resume=True, quiet=True, command=job.command)
    except InputError as mistake:
        raise InputError(f"{folder / job.name}: {mistake}") from mistake
    write(make_record(run, job.name), folder / FOLDER / job.name)


def _stored(job: Job, folder: Path) -> Record | None:
    """The record of a run, if it is there and the run is as it was when it was made."""
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


def _share(job: Job, folder: Path) -> float:
    """How much of a run is done, by the rows of its metrics."""
    rows = folder / job.name / "metrics.jsonl"
    return min(1.0, rows.read_bytes().count(b"\n") / (job.config.train.steps + 1)) if rows.exists() else 0.0


def cost(config: RunConfig) -> int:
    """Multiplications of a run, roughly: enough to tell the time that is left."""
    model, train = config.model, config.train
    maps = 24 if not model.identity_queries else 4  # d x d products a token and layer, forward and backward
    tokens = train.steps * train.batch_size * config.task.length
    return tokens * model.n_layers * model.d_model * (maps * model.d_model + 2 * config.task.length)
