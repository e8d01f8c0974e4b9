"""Run a list of jobs on an engine: which attempts are repeated, and how everything stops.

A job whose process was killed is run again, up to ATTEMPTS times in all, and the run continues from its last saved
state. If another process trains in a job's folder, the job waits at the end of the queue until the folder is free. An
error is never retried, because it would occur again. In all cases the other jobs continue.

SIGINT and SIGTERM stop everything: no new job starts, the processes end, and `Stopped` says how many runs are done.

`start` begins or resumes a sweep: it skips completed runs, trains the others, and reports failed ones.
"""

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from induction_memory.errors import DamagedError, Error, InputError, Stopped, require
from induction_memory.field_docs import field_docs
from induction_memory.files import make_folder, require_folder, write_file
from induction_memory.sweep import job as jobs
from induction_memory.sweep import plan
from induction_memory.sweep.board import Board, unit
from induction_memory.sweep.job import Engine, Job, Outcome, Pool
from induction_memory.sweep.plan import PlannedRun, cost
from induction_memory.terminal import Progress
from induction_memory.trajectory.manifest import MANIFEST, Manifest

ATTEMPTS = 4
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_UNTIL_BUSY_AGAIN = 1.0


def engine(workers: int = 2, scheduler: str | None = None) -> Engine:
    """The cluster at an address, or a pool of processes here."""
    if scheduler is not None:
        from induction_memory.sweep.cluster import Cluster

        return Cluster(scheduler)
    return Pool(workers)


def work_off(jobs: Sequence[Job], on: Engine, *, progress: "Progress" = None) -> dict[str, Outcome]:
    """Run every job until it is done or failed, then close the engine. Raises Stopped on a signal."""
    by_name = {job.name: job for job in jobs}
    work = _Work(by_name, on)
    try:
        with _signals() as raise_if_stopped, closing(on), Board(by_name, progress) as board:
            for job in jobs:
                on.submit(job)
            while len(work.ended) < len(by_name):
                raise_if_stopped()
                work.ask_again()
                if (found := on.next(SECONDS_BETWEEN_LOOKS)) is not None and (line := work.note(*found)):
                    board.note(line)
                board.show(work.done, work.failed, on.running)
    except Stopped as stop:
        told = f"stopped by {stop} after {len(work.done)} of {len(by_name)} {unit(by_name)}; the same command continues"
        raise Stopped(stop.number, told) from None
    return work.ended


class _Work:
    """The jobs that have ended, and the jobs to run again."""

    def __init__(self, jobs: Mapping[str, Job], on: Engine) -> None:
        self.ended: dict[str, Outcome] = {}
        self.done: list[str] = []
        self.failed: list[str] = []
        self._jobs, self._on = jobs, on
        self._deaths: Counter[str] = Counter()
        self._busy: dict[str, float] = {}
        self._told: set[str] = set()

    def ask_again(self) -> None:
        """Resubmit the jobs whose folder was held by another process."""
        now = time.monotonic()
        for name in [name for name, since in self._busy.items() if now - since > SECONDS_UNTIL_BUSY_AGAIN]:
            del self._busy[name]
            self._on.submit(self._jobs[name])

    def note(self, name: str, outcome: Outcome) -> str | None:
        """Handle the end of an attempt; returns the line to print, if there is one."""
        match outcome.state:
            case "died" if self._deaths[name] + 1 < ATTEMPTS:
                self._deaths[name] += 1
                self._on.submit(self._jobs[name])
                return f"{name}: {outcome.error}; it is run again"
            case "busy":
                self._busy[name] = time.monotonic()
                if outcome.error not in self._told:
                    self._told.add(outcome.error)
                    return f"waiting: {outcome.error}"
            case "stopped":
                raise Error(f"{outcome.error}; what was done is kept, and the same command continues")
            case _:
                self.ended[name] = outcome
                (self.done if outcome.state == "done" else self.failed).append(name)
        return None


@contextmanager
def _signals() -> Iterator[Callable[[], None]]:
    """Turn the first SIGINT or SIGTERM into Stopped; later ones are ignored, so that ending the processes can finish.

    Python drops an exception that a signal raises inside a destructor or a callback of the garbage collector. So the
    signal is also remembered, and the yielded function raises Stopped for it.
    """
    came: list[int] = []

    def raise_if_stopped() -> None:
        if came:
            raise Stopped(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield raise_if_stopped
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for known in before:
            signal.signal(known, signal.SIG_IGN)
        came.append(number)
        raise_if_stopped()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield raise_if_stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@field_docs
@dataclass(frozen=True)
class Workers:
    """Processes that measure the steps of a run or a series, here or on a Dask cluster: the `engine` of analyses.

    Each process has one thread and reads its own checkpoints.

    >>> import induction_memory as im
    >>> table = im.ablate("induction-small", heads="all", step="all", engine=im.sweep.Workers(2), progress=False)
    >>> table["step"].nunique()
    5
    """

    workers: int = 2
    """Processes on this machine."""
    scheduler: str | None = None
    """The address of a Dask scheduler, whose workers are used instead; they share this machine's file system."""

    def run(
        self,
        function: Callable[..., None],
        calls: Mapping[str, Mapping[str, Any]],
        folder: Path,
        progress: "Progress" = None,
    ) -> None:
        """Call a function of a module with each of the plain arguments; the first error is raised after all calls."""
        on = engine(min(require_workers(self.workers), len(calls)), self.scheduler)
        path = jobs.path_of(function)
        ended = work_off([Job(name, path, call, folder, 0) for name, call in calls.items()], on, progress=progress)
        for name, outcome in ended.items():
            if outcome.state != "done":
                raise (InputError if outcome.state == "mistake" else Error)(f"{name}: {outcome.error}")


COPY = "sweep.toml"
FAILURES = "failures.json"
MOST_WORKERS = 1024


@field_docs
@dataclass(frozen=True)
class Finished:
    """How a sweep ended."""

    skipped: tuple[str, ...]
    """Runs that were already done before this call."""
    done: tuple[str, ...]
    failed: Mapping[str, str]
    """Name of a run -> its error."""


def start(
    file: str | Path, out: str | Path, *, workers: int = 2, scheduler: str | None = None, progress: "Progress" = None
) -> Finished:
    """Train every run of a sweep's file in its own folder of `out`, on this machine or on a Dask cluster.

    The same call resumes a sweep that was stopped. A run that fails does not stop the others. The file is copied to
    `out`, and the errors of failed runs are kept beside it.
    """
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
        write_file(folder / COPY, content)
    jobs_left = [job_of(run, folder) for run in waiting]
    ended = {} if on is None else work_off(jobs_left, on, progress=progress)
    failed = {name: outcome.error for name, outcome in ended.items() if outcome.state != "done"}
    if failed or (folder / FAILURES).exists():
        write_file(folder / FAILURES, json.dumps(failed, indent=1) + "\n")
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
    return "done" if manifest.finished and not differences else "begun"
