"""A child process that does one job after another, and the class by which its owner controls it.

A pair of sockets joins the two processes. A job goes to the child as JSON and its outcome comes back. When the owner's
socket closes, for example because the owner was killed, the child ends at once, so that no process is left that holds a
folder's lock. Runs may be killed at any moment, so the owner stops a child by killing it.

    python -m induction_memory.sweep.child DESCRIPTOR
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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from induction_memory.errors import Error, InputError
from induction_memory.sweep.job import Job, Outcome, function_at

SECONDS_BETWEEN_QUESTIONS = 0.2
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Child:
    """The owner's side. It starts the process, which imports nothing heavy before its first job."""

    def __init__(self) -> None:
        mine, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "induction_memory.sweep.child", str(its.fileno())],
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
    memory = " (perhaps by the kernel, for want of memory)" if -code == signal.SIGKILL else ""
    return f"its process was killed by {name}{memory}"


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
