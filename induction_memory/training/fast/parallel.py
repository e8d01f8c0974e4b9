"""Groups of micro-batches over threads, with results that do not depend on the number of threads.

Each thread takes the next free group and works through it alone, with library calls that use one thread each: at these
sizes, two threads on separate groups lose less time than two threads that share every small product. Each group has its
own sums, and these are added in the order of the groups.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from induction_memory.training.fast.queries import MicroBatch
from induction_memory.training.fast.sums import Sums
from induction_memory.training.fast.workspace import Workspace

Work = Callable[[MicroBatch, Workspace, Sums], None]

_idle: deque[Workspace] = deque()


@contextmanager
def one_thread_a_call() -> Iterator[int]:
    """Inside the block, library calls use one thread each; yields the number they used before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def run_groups(work: Work, groups: Sequence[Sequence[MicroBatch]], device: torch.device, threads: int) -> Sums:
    """Do the work of every piece in `threads` threads; returns the sums over all groups."""
    sums = [Sums(device) for _ in groups]
    waiting = deque(reversed(range(len(groups))))  # the last groups have the most work
    errors: list[BaseException] = []

    def worker() -> None:
        torch.set_num_threads(1)  # for library calls of this thread
        buffers = _take(device)
        try:
            with torch.no_grad():
                while not errors:
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

    helpers = [threading.Thread(target=worker, name=f"micro-batches {i}") for i in range(1, threads)]
    for helper in helpers:
        helper.start()
    worker()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    total = Sums(device)
    for part in sums:
        total.add(part)
    return total


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
