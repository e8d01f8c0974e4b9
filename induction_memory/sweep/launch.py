"""Start or resume a sweep: completed runs are skipped, the others are trained, and failed ones are reported."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from induction_memory.errors import DamagedError, InputError, require
from induction_memory.field_docs import field_docs
from induction_memory.files import require_folder
from induction_memory.sweep import job as jobs
from induction_memory.sweep import plan
from induction_memory.sweep.estimate import cost
from induction_memory.sweep.job import Job
from induction_memory.sweep.loop import engine, work_off
from induction_memory.sweep.plan import PlannedRun
from induction_memory.trajectory.layout import MANIFEST

COPY = "sweep.toml"
FAILURES = "failures.json"
MOST_WORKERS = 1024


@field_docs
@dataclass(frozen=True)
class Finished:
    """How a sweep ended."""

    skipped: tuple[str, ...]
    """Runs that were done before this call."""
    done: tuple[str, ...]
    failed: Mapping[str, str]
    """Name of a run -> its error."""


def start(
    file: str | Path, out: str | Path, *, workers: int = 2, scheduler: str | None = None, quiet: bool = False
) -> Finished:
    """Train every run of a sweep's file in its own folder of `out`, on this machine or on a Dask cluster.

    The same call resumes a sweep that was stopped. A run that fails does not stop the others. The file is copied to
    `out`, and the errors of failed runs are kept beside it.
    """
    from induction_memory.trajectory.durable import make_folder, write_durably

    require_workers(workers)
    folder = require_folder(out)
    require(not (folder / MANIFEST).exists(), "out", "a folder outside of other runs", f"the run {str(folder)!r}")
    sweep = plan.read(file)
    content = Path(file).read_bytes()
    states = look(sweep.runs, folder)
    waiting = [run for run in sweep.runs if states[run.name] != "done"]
    on = engine(min(workers, len(waiting)), scheduler) if waiting else None  # a wrong address leaves no folder behind
    make_folder(folder)
    if not ((folder / COPY).exists() and (folder / COPY).read_bytes() == content):
        write_durably(folder / COPY, [content])
    jobs_left = [job_of(run, folder) for run in waiting]
    ended = {} if on is None else work_off(jobs_left, on, quiet=quiet)
    failed = {name: outcome.error for name, outcome in ended.items() if outcome.state != "done"}
    if failed or (folder / FAILURES).exists():
        write_durably(folder / FAILURES, [json.dumps(failed, indent=1).encode() + b"\n"])
    done = tuple(name for name in ended if name not in failed)
    return Finished(tuple(name for name, state in states.items() if state == "done"), done, failed)


def require_workers(workers: int) -> int:
    """The number of workers, checked."""
    whole = isinstance(workers, int) and not isinstance(workers, bool) and 1 <= workers <= MOST_WORKERS
    require(whole, "--workers", f"a whole number from 1 to {MOST_WORKERS}", repr(workers))
    return workers


def look(runs: tuple[PlannedRun, ...], folder: Path) -> dict[str, str]:
    """Name -> "done", "begun" or "new"; a folder that holds another run is an error, before anything is trained."""
    return {run.name: _state(run, folder / run.name) for run in runs}


def job_of(run: PlannedRun, folder: Path) -> Job:
    """The job that trains a planned run."""
    out, config = (folder / run.name).absolute(), run.config
    arguments = {"config": config.to_dict(), "out": str(out), "command": run.command}
    return Job(run.name, jobs.path_of(jobs.train), arguments, out, config.train.steps, cost(config))


def _state(run: PlannedRun, folder: Path) -> str:
    from induction_memory.experiment.run_config import RunConfig
    from induction_memory.trajectory.manifest import Manifest

    if not (folder / MANIFEST).exists():
        return "new"
    try:
        manifest = Manifest.read(folder)
    except DamagedError:
        return "begun"  # the job of this run will report the damage
    config = run.config
    same = config.to_dict() == manifest.config
    differences = {} if same else config.differences(RunConfig.from_dict(manifest.config))
    for path, (asked, there) in differences.items():
        if path != "train.steps" or asked < there:
            raise InputError(f"{folder}: expected {path} = {asked!r}, as in the sweep's file, got {there!r}")
    return "done" if manifest.state == "finished" and not differences else "begun"
