"""Work off a list of jobs on an engine: what is run again, what is not, and how it all stops.

An attempt that died (its process was killed) is run again, up to ATTEMPTS times in all; the run goes on from its last
saved state. One that found the folder held by another process goes to the end of the queue until the folder is free:
whoever holds it trains the same run. An error is never retried: it would come again. The other jobs go on either way.

SIGINT and SIGTERM stop everything: no new job starts, the processes end, and `Stopped` says how far it went.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

from induction_memory.errors import InputError
from induction_memory.sweep.job import Engine, Job, Outcome
from induction_memory.sweep.live import Board

ATTEMPTS = 4
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_UNTIL_BUSY_AGAIN = 1.0


class Stopped(KeyboardInterrupt):
    """A signal ended the sweep."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def engine(workers: int = 2, scheduler: str | None = None) -> Engine:
    """The cluster at an address, or a pool of processes here."""
    if scheduler is not None:
        from induction_memory.sweep.cluster import Cluster

        return Cluster(scheduler)
    from induction_memory.sweep.pool import Pool

    return Pool(workers)


def work_off(jobs: Sequence[Job], on: Engine, *, quiet: bool = False) -> dict[str, Outcome]:
    """Run every job to its end, done or failed; the engine is closed afterwards. Raises Stopped on a signal."""
    by_name = {job.name: job for job in jobs}
    ended: dict[str, Outcome] = {}
    deaths: dict[str, int] = {}
    busy: dict[str, float] = {}
    told: set[str] = set()
    with _signals(), closing(on), Board(by_name, quiet=quiet) as board:
        for job in jobs:
            on.submit(job)
        while len(ended) < len(by_name):
            for name in [name for name, since in busy.items() if time.monotonic() - since > SECONDS_UNTIL_BUSY_AGAIN]:
                del busy[name]
                on.submit(by_name[name])
            found = on.next(SECONDS_BETWEEN_LOOKS)
            if found is not None:
                name, outcome = found
                if outcome.state == "died" and deaths.get(name, 0) + 1 < ATTEMPTS:
                    deaths[name] = deaths.get(name, 0) + 1
                    _tell(board, quiet, f"{name}: {outcome.error}; it goes on in another")
                    on.submit(by_name[name])
                elif outcome.state == "busy":
                    busy[name] = time.monotonic()
                    if outcome.error not in told:
                        told.add(outcome.error)
                        _tell(board, quiet, f"waiting: {outcome.error}")
                elif outcome.state == "stopped":
                    raise InputError(f"{outcome.error}; what was trained is kept, and the same command goes on")
                else:
                    ended[name] = outcome
            done = [name for name, outcome in ended.items() if outcome.state == "done"]
            board.show(done, [name for name in ended if ended[name].state != "done"], on.running)
    return ended


def _tell(board: Board, quiet: bool, line: str) -> None:
    if board.is_live:
        board.note(line)
    elif not quiet:
        print(line, file=sys.stderr, flush=True)


@contextmanager
def _signals() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into Stopped; the later ones are ignored, so that the processes are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for known in before:
            signal.signal(known, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
