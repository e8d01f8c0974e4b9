"""Groups of micro-batches over threads, with results that do not depend on how many there are.

A thread takes the next group that nobody has taken and works through it alone, with library calls that use one thread
each: at these sizes two threads at their own work lose less time than two that share every small product. Each group
has its own sums, and these are added in the order of the groups.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from induction_memory.training.fast.queries import Piece
from induction_memory.training.fast.sums import Sums
from induction_memory.training.fast.workspace import Workspace

Work = Callable[[Piece, Workspace, Sums], None]

_idle: deque[Workspace] = deque()


def run_groups(work: Work, groups: Sequence[Sequence[Piece]], device: torch.device) -> Sums:
    """Do the work of every piece; the sums of all groups."""
    sums = [Sums(device) for _ in groups]
    waiting = deque(reversed(range(len(groups))))  # the last have most to do
    errors: list[BaseException] = []

    def worker() -> None:
        buffers = _take(device)
        try:
            with torch.no_grad():
                while waiting and not errors:
                    try:
                        number = waiting.popleft()
                    except IndexError:
                        return
                    for piece in groups[number]:
                        work(piece, buffers, sums[number])
        except BaseException as error:
            errors.append(error)
        finally:
            _idle.append(buffers)

    threads = torch.get_num_threads() if device.type == "cpu" else 1
    if threads == 1:
        worker()
    else:
        _spread(worker, threads)
    if errors:
        raise errors[0]
    total = Sums(device)
    for part in sums:
        total.add(part)
    return total


def _spread(worker: Callable[[], None], threads: int) -> None:
    """Run the worker in as many threads, each of which computes with one."""

    def single() -> None:
        torch.set_num_threads(1)  # of this thread alone
        worker()

    started = [threading.Thread(target=single, name=f"micro-batches {i}") for i in range(threads - 1)]
    try:
        for thread in started:
            thread.start()
        single()
        for thread in started:
            thread.join()
    finally:
        torch.set_num_threads(threads)


def _take(device: torch.device) -> Workspace:
    """A workspace that no thread uses now."""
    for _ in range(len(_idle)):
        try:
            buffers = _idle.popleft()
        except IndexError:
            break
        if buffers.device == device:
            return buffers
        _idle.append(buffers)
    return Workspace(device)
