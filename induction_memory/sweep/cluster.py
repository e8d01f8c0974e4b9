"""An engine on any cluster that `dask.distributed` reaches and whose machines share a file system.

A Dask task does not train in the worker's thread: like the pool, it passes the job to a child process. There the run
trains in the main thread with one numerical thread, however many threads the worker has. It can also be stopped: when
the client or the scheduler is gone, or when the worker closes, the task notices within a second and kills the child,
which frees the folder's lock. A worker that closes, as at the end of its lifetime, returns its job to the scheduler. If
a worker is killed, its child ends too, and Dask gives the job to another worker (up to three times, by its own setting
`allowed-failures`).
"""

import contextlib
import itertools
import logging
import queue
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from induction_memory.errors import InputError, require
from induction_memory.sweep.job import Child, Job, Outcome

SECONDS_TO_CONNECT = 10
_children: "queue.SimpleQueue[Child]" = queue.SimpleQueue()
"""In a Dask worker: idle children, kept for the next job."""


class Cluster:
    """The jobs of one client on the scheduler at `address`."""

    def __init__(self, address: str) -> None:
        require(
            find_spec("distributed") is not None,
            "--scheduler",
            "the package distributed (pip install 'induction-memory[dask]')",
            "none installed",
        )
        from distributed import Client
        from distributed.comm.addressing import get_address_host_port

        self._address = address
        self._ended: queue.SimpleQueue[tuple[str, Outcome]] = queue.SimpleQueue()
        self._futures: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        self._closing = threading.Event()
        self._attempts = itertools.count()
        self._quiet = contextlib.ExitStack()
        self._quiet.enter_context(_silent_logs())  # errors are reported here, in one line
        try:
            get_address_host_port(address)  # a client of no address at all would wait 20 seconds for itself at the end
            self._client = Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            self._quiet.close()
            told = " ".join(str(error).split())
            raise InputError(
                f"--scheduler: expected the address of a Dask scheduler, got {address!r} ({told})"
            ) from error

    def submit(self, job: Job) -> None:
        key = f"{job.name}-{self._client.id}-{next(self._attempts)}"
        message = {"name": job.name, "work": job.work, "arguments": dict(job.arguments), "folder": str(job.folder)}
        future = self._client.submit(run_in_child, message, key, key=key, pure=False, retries=0)
        self._futures[job.name], self._names[key] = future, job.name
        future.add_done_callback(lambda future: self._note(job.name, future))

    def next(self, timeout: float) -> tuple[str, Outcome] | None:
        try:
            name, outcome = self._ended.get(timeout=timeout)
        except queue.Empty:
            return None
        self._futures.pop(name, None)
        return name, outcome

    def running(self) -> set[str]:
        try:
            processing: Any = self._client.processing()
            keys = [key for keys in processing.values() for key in keys]
        except (OSError, RuntimeError):  # the connection is lost: the futures report it
            return set()
        return {self._names[key] for key in keys if key in self._names}

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.cancel(list(self._futures.values()))
        with contextlib.suppress(Exception):
            self._client.close(timeout=SECONDS_TO_CONNECT)
        self._quiet.close()

    def _note(self, name: str, future: Any) -> None:
        """Called by Dask when a future ends. If its result is lost with its worker, Dask runs it again."""
        if self._closing.is_set():
            return
        try:
            outcome = self._outcome(future)
        except Exception as error:  # even after an error, the job must end
            outcome = _told(error)
        if outcome is None:
            future.add_done_callback(lambda future: self._note(name, future))
        else:
            self._ended.put((name, outcome))

    def _outcome(self, future: Any) -> Outcome | None:
        if future.status == "error":
            return _told(future.exception())
        if future.status == "finished":
            with contextlib.suppress(TimeoutError):
                return Outcome(**future.result(timeout=SECONDS_TO_CONNECT))
        if future.status == "cancelled":
            return Outcome("stopped", f"the scheduler at {self._address} is gone")
        return None


def _told(error: BaseException) -> Outcome:
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        return Outcome("failed", "the workers that ran it were killed, one after the other")
    return Outcome("failed", f"{type(error).__name__}: {' '.join(str(error).split())}")


def run_in_child(message: dict[str, Any], key: str) -> dict[str, Any]:
    """The Dask task: run a job in a child of this worker. If the worker closes, another worker gets the job."""
    from distributed import Reschedule, get_worker

    worker: Any = get_worker()
    job = Job(message["name"], message["work"], message["arguments"], Path(message["folder"]))

    def is_closing() -> bool:
        return worker.status.name not in ("running", "paused")

    def is_unwanted() -> bool:
        task = worker.state.tasks.get(key)
        return is_closing() or task is None or task.state == "cancelled"

    try:
        child = _children.get_nowait()
    except queue.Empty:
        child = Child()
    outcome = child.run(job, is_unwanted)
    if outcome.state in ("died", "stopped"):
        child.kill()
    else:
        _children.put(child)
    if outcome.state == "stopped" and is_closing():
        raise Reschedule
    return outcome.to_dict()


@contextlib.contextmanager
def _silent_logs() -> Iterator[None]:
    before = {logger: logger.level for logger in map(logging.getLogger, ("distributed", "distributed.client"))}
    for logger in before:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
