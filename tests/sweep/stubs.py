"""Jobs that train nothing: they leave a trace in a folder, so that a test sees how often they ran and where.

`python -m tests.sweep.stubs FILE OUT [ADDRESS]` trains a sweep's runs for real, but on a slow disk, so that they can be
caught in the middle: on one worker of this machine, or on the cluster of that address.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from induction_memory.errors import InputError
from induction_memory.sweep.job import Job, path_of
from induction_memory.trajectory.lock import locked


def note(folder: str) -> None:
    """Leave one file per call, named after the process."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, f"{time.monotonic_ns()}.{os.getpid()}").touch()


def mistake(folder: str) -> None:
    note(folder)
    raise InputError("task.k: expected less, got more")


def crash(folder: str) -> None:
    note(folder)
    raise RuntimeError("two\nlines")


def die(folder: str, times: int) -> None:
    """Be killed, the first `times` times."""
    note(folder)
    if len(calls(Path(folder))) <= times:
        os.kill(os.getpid(), signal.SIGKILL)


def hold(folder: str, seconds: float) -> None:
    """Hold the folder's lock."""
    with locked(Path(folder)):
        note(folder)
        time.sleep(seconds)


def hold_until_run(folder: str, other: str) -> None:
    """Hold the folder's lock until the job of another folder has begun."""
    with locked(Path(folder)):
        note(folder)
        while not calls(Path(other)):
            time.sleep(0.02)


def hold_at_first(folder: str) -> None:
    """Take forever, but only the first time."""
    note(folder)
    if len(calls(Path(folder))) == 1:
        time.sleep(600)


def threads(folder: str) -> None:
    """Note how many threads the numerical libraries are allowed."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "threads").write_text(os.environ["OMP_NUM_THREADS"])


def calls(folder: Path) -> list[Path]:
    """The traces of `note`, in the order in which they were left."""
    return sorted(path for path in folder.glob("*.*") if path.name != ".lock") if folder.exists() else []


def job(name: str, place: Path, work=note, **arguments) -> Job:
    return Job(name, path_of(work), {"folder": str(place / name)} | arguments, place / name)


def train_slowly(**arguments) -> None:
    """Train a run; each flush takes a while."""
    from induction_memory.sweep.job import train

    os.fsync = lambda descriptor: time.sleep(0.01)
    train(**arguments)


def main(file: str, out: str, scheduler: str | None = None) -> None:
    from induction_memory.sweep.loop import engine, job_of, work_off
    from induction_memory.sweep.plan import read

    jobs = [replace(job_of(run, Path(out)), work="tests.sweep.stubs:train_slowly") for run in read(file).runs]
    work_off(jobs, engine(1, scheduler))


if __name__ == "__main__":
    main(*sys.argv[1:])
