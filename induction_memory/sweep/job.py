"""Jobs, and the processes on this machine that run them.

A job is a function's name with plain values, sent as JSON. The function runs in a child process, here or on another
machine.

A child runs one job after another. A pair of sockets connects it to its owner: jobs go to the child, outcomes come
back. When the owner's socket closes, for example because the owner was killed, the child ends at once, so that no
process keeps a folder's lock. Runs may be killed at any moment, so the owner stops a child by killing it. A `Pool` has
several children with one thread each.

    python -m induction_memory.sweep.job DESCRIPTOR
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from induction_memory.errors import Error, InputError, require

State = Literal["done", "mistake", "failed", "busy", "died", "stopped"]


@dataclass(frozen=True)
class Job:
    """One run to train, or any other long computation that keeps its results in a folder."""

    name: str
    work: str
    """The function, as "module:function"; it is called with `arguments` by name."""
    arguments: Mapping[str, Any]
    """Plain values, as JSON has them."""
    folder: Path
    """The folder with its metrics."""
    steps: int = 1
    """The last training step; 0 for a step of an analysis."""
    cost: float = 1.0
    """Its cost in time, in any unit."""


@dataclass(frozen=True)
class Outcome:
    """How one attempt at a job ended.

    done: it succeeded. mistake: an error that the user can correct. failed: any other error. busy: another process
    holds the folder. died: its process was killed. stopped: the engine was told to stop.
    """

    state: State
    error: str = ""
    seconds: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state, "error": self.error, "seconds": self.seconds}


@runtime_checkable
class Engine(Protocol):
    """Something that runs jobs: a pool of processes here, or a cluster."""

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        ...

    def next(self, timeout: float) -> tuple[str, Outcome] | None:
        """The name of a job whose attempt has ended, and its outcome; None if none ends within `timeout` seconds."""
        ...

    def running(self) -> set[str]:
        """The names of the running jobs."""
        ...

    def close(self) -> None:
        """Stop the jobs that still run."""
        ...


def path_of(function: Callable[..., object]) -> str:
    """ "module:function" of a function, also for the script that is being run."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(str(main.__file__)).stem
    return f"{module}:{function.__name__}"


def function_at(path: str) -> Callable[..., object]:
    """The inverse of `path_of`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def train(config: dict[str, Any], out: str, command: str) -> None:
    """Train one run into its folder, or resume it."""
    from induction_memory.experiment.run_config import RunConfig
    from induction_memory.training.run import start

    start(RunConfig.from_dict(config), out, resume="or start", progress=False, command=command)


SECONDS_BETWEEN_QUESTIONS = 0.2
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Child:
    """The owner's side. It starts the process, which imports nothing heavy before its first job."""

    def __init__(self) -> None:
        mine, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "induction_memory.sweep.job", str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(mine.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: Job, stop: Callable[[], bool] = lambda: False) -> Outcome:
        """Run a job in the child, which is killed when `stop` returns True."""
        try:
            self._connection.send_bytes(json.dumps({"work": job.work, "arguments": dict(job.arguments)}).encode())
            while not self._connection.poll(SECONDS_BETWEEN_QUESTIONS):
                if stop():
                    self.kill()
                    return Outcome("stopped")
            return Outcome(**json.loads(self._connection.recv_bytes()))
        except (EOFError, OSError):
            return Outcome("stopped") if stop() else Outcome("died", _ending(self._process.wait()))

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()
        self._connection.close()


def _ending(code: int) -> str:
    """A process's exit code in words."""
    if code >= 0:
        return f"its process ended with code {code}"
    known = {number.value for number in signal.Signals}
    name = signal.Signals(-code).name if -code in known else f"signal {-code}"
    memory = " (perhaps by the kernel, because memory ran out)" if -code == signal.SIGKILL else ""
    return f"its process was killed by {name}{memory}"


class Pool:
    """Up to `workers` processes at a time; a killed one is replaced if there are more jobs."""

    def __init__(self, workers: int) -> None:
        require(os.name == "posix", "--workers", "Linux, macOS or WSL, whose processes inherit sockets", os.name)
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[str, Outcome]] = queue.SimpleQueue()
        self._running: dict[threading.Thread, str] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        self._waiting.put(job)

    def next(self, timeout: float) -> tuple[str, Outcome] | None:
        try:
            return self._ended.get(timeout=timeout)
        except queue.Empty:
            return None

    def running(self) -> set[str]:
        return set(self._running.copy().values())

    def close(self) -> None:
        self._stop.set()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        child, me = None, threading.current_thread()
        while (job := self._waiting.get()) is not None and not self._stop.is_set():
            try:
                child = child or Child()
            except OSError as error:
                self._ended.put((job.name, Outcome("failed", f"no process could be started for it: {error}")))
                continue
            self._running[me] = job.name
            outcome = child.run(job, self._stop.is_set)
            del self._running[me]
            if outcome.state in ("died", "stopped"):
                child.kill()
                child = None
            self._ended.put((job.name, outcome))
        if child is not None:
            child.kill()


def _serve(connection: Connection) -> None:
    """The child's side: a thread receives jobs, and notices when the owner's socket closes."""
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
    while True:
        began = time.monotonic()
        message = json.loads(jobs.get())
        outcome = _attempt(message["work"], message["arguments"])
        took = time.monotonic() - began
        connection.send_bytes(json.dumps(outcome.to_dict() | {"seconds": took}).encode())


def _listen(connection: Connection, jobs: "queue.SimpleQueue[bytes]") -> None:
    while True:
        try:
            jobs.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)  # the owner is gone: end at once, even in the middle of a job


def _attempt(work: str, arguments: dict) -> Outcome:
    from induction_memory.trajectory.lock import BusyError

    try:
        function_at(work)(**arguments)
    except BusyError as error:
        return Outcome("busy", str(error))
    except InputError as error:
        return Outcome("mistake", str(error))
    except Error as error:
        return Outcome("failed", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = " ".join(str(error).split())
        return Outcome("failed", f"{type(error).__name__}: {told} ({Path(where.filename).name}, line {where.lineno})")
    return Outcome("done")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of the group; the owner handles it
    _serve(Connection(int(sys.argv[1])))
