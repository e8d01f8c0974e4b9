"""A line of progress for work that takes more than a moment, in a terminal and in a notebook.

The line appears after one second, so that quick calls stay silent, and is cleared when the work is done. It goes to
standard error, and only where a person watches: with neither a terminal nor a notebook, nothing is shown. One line is
rewritten in place, without a thread or a hidden cursor, so that an interruption leaves nothing behind. Work inside work
writes to the same line.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

PATIENCE = 1.0
"""Seconds before the line appears."""
PAUSE = 0.1
"""Seconds between two writings of it."""
WIDTH = 30
"""Characters of the bar."""


def track(
    items: Iterable[Item], what: str, total: int | None = None, size: Callable[[Item], int] = lambda item: 1
) -> Iterator[Item]:
    """The items one by one, with a line that says what is done, how much of it, and how long the rest takes.

    `total` is the sum of the items' sizes, by default their number.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None:
        items = list(items)
        total = sum(map(size, items))
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield from items
        return
    began = written = time.monotonic()
    done, shown = 0, False
    try:
        for item in items:
            yield item
            done, now = done + size(item), time.monotonic()
            if now - began > PATIENCE and now - written > PAUSE:
                sys.stderr.write(f"\r{line(what, done, total, now - began)}")
                sys.stderr.flush()
                written, shown = now, True
    finally:
        if shown:
            sys.stderr.write(f"\r{' ' * len(line(what, total, total, 0.0))}\r")
            sys.stderr.flush()


@contextmanager
def keeping(done: Sized, what: str) -> Iterator[None]:
    """An interruption (Ctrl-C) ends the block, and what is done by then is kept; it is raised if nothing is done.

    >>> steps = []
    >>> with keeping(steps, "steps"):
    ...     for step in (0, 100, 200):
    ...         if step == 200:
    ...             raise KeyboardInterrupt
    ...         steps.append(step)
    >>> steps
    [0, 100]
    """
    try:
        yield
    except KeyboardInterrupt:
        if not len(done):
            raise
        print(f"interrupted: {len(done)} {what} are kept", file=sys.stderr)


def line(what: str, done: int, total: int, seconds: float) -> str:
    """What is written after some of the work.

    >>> line("ablating", 15, 60, 5.0)
    'ablating #######....................... 15/60, 0:15 left'
    """
    share = done / total if total else 1.0
    bar = ("#" * int(share * WIDTH)).ljust(WIDTH, ".")
    left = round(seconds * (1 - share) / share) if share else 0
    return f"{what} {bar} {done:>{len(str(total))}}/{total}, {left // 60}:{left % 60:02} left"
