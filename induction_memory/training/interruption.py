"""Ctrl-C and SIGTERM end a run with one line; `--resume` goes on from there.

Both leave what is on the disk as it is: a run can be killed at any moment (`trajectory/writer.py`). SIGTERM is turned
into an exception while a run trains in the main thread, unless the program has its own handler for it.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from induction_memory.errors import printable


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal; the message says where."""

    def __init__(self, folder: Path, step: int, number: int) -> None:
        name = signal.Signals(number).name
        super().__init__(
            printable(f"{folder}: stopped by {name} at step {step}; continue with --resume or resume=True")
        )
        self.number = number


class _Terminated(KeyboardInterrupt):
    pass


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises an exception, as Ctrl-C does."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def number(stop: KeyboardInterrupt) -> int:
    """The signal behind an exception."""
    return signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated
