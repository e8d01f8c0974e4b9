"""A line of progress for work that takes more than a moment, in a terminal and in a notebook.

The line appears after one second, so that quick calls stay silent, and is cleared when the work is done. It goes to
standard error, and only to a terminal or a notebook. One line is rewritten in place, without a thread or a hidden
cursor, so that an interruption leaves nothing behind. It is narrower than the terminal, because a wrapped line cannot
be rewritten. In a notebook it is one output of the cell, which is empty in the end. Nested work shares the line:
`steps 3/31, patched runs ...`. The time left is that of the outermost work.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")

PATIENCE = 1.0
"""Seconds before the line appears."""
PAUSE = 0.1
"""Seconds between two updates of the line."""
WIDTH = 30
"""Characters of the bar, at most."""
COLUMNS = 80
"""Characters of the line if the width of the terminal is unknown."""


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
    if total == 1 or not (sys.stderr.isatty() or in_notebook()):
        yield from items
        return
    work = _Work(what, total)
    _UNDER_WAY[:] = [other for other in _UNDER_WAY if other.cell == work.cell]  # an error may have left some
    _UNDER_WAY.append(work)
    try:
        for item in items:
            yield item
            work.done += size(item)
            work.seconds = time.monotonic() - work.began
            _show()
    finally:
        if work in _UNDER_WAY:
            _UNDER_WAY.remove(work)
        if not _UNDER_WAY:
            _LINE.clear()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, not only a program that has imported IPython."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return get_ipython() is not None


def _cell() -> int:
    """The number of the notebook's cell that runs; 0 elsewhere."""
    if not in_notebook():
        return 0
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "execution_count", 0)


@dataclass(eq=False)
class _Work:
    """Work that is under way: what, how much of it is done, since when, and in which cell."""

    what: str
    total: int
    done: int = 0
    seconds: float = 0.0
    """Seconds from the start to the last completed item."""
    began: float = field(default_factory=time.monotonic)
    cell: int = field(default_factory=_cell)


_UNDER_WAY: list[_Work] = []
"""The outermost work first."""


class CellOutput:
    """One line of text among the outputs of a notebook's cell; each later line in the cell replaces it."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._cell = -1

    def write(self, text: str) -> None:
        if self._shown is None or self._cell != _cell():
            from IPython.display import display

            self._shown, self._cell = display({"text/plain": text}, raw=True, display_id=True), _cell()
        else:
            self._shown.update({"text/plain": text}, raw=True)


class _Line:
    """The one line that is rewritten in place: in a terminal, or as one output of a notebook's cell."""

    def __init__(self) -> None:
        self.text, self.written = "", 0.0
        self.output = CellOutput()

    def write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text.ljust(len(self.text))}")
            sys.stderr.flush()
        else:
            self.output.write(text)
        self.text, self.written = text, time.monotonic()

    def clear(self) -> None:
        if self.text and sys.stderr.isatty():
            sys.stderr.write(f"\r{' ' * len(self.text)}\r")
            sys.stderr.flush()
        elif self.text:
            self.output.write("")
        self.text, self.written = "", 0.0


_LINE = _Line()


def _show() -> None:
    """Write the line, once the outermost work takes long: all work under way, with the bar of the innermost."""
    now, (*outer, inner) = time.monotonic(), _UNDER_WAY
    if now - _UNDER_WAY[0].began > PATIENCE and now - _LINE.written > PAUSE:
        before = "".join(f"{work.what} {min(work.done + 1, work.total)}/{work.total}, " for work in outer)
        _LINE.write(line(before + inner.what, inner.done, inner.total, _left(_UNDER_WAY[0], now), _columns()))


def _columns() -> int:
    """How wide the terminal is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):  # a notebook, or a stream without a descriptor
        return COLUMNS


def _left(work: _Work, now: float) -> float | None:
    """Seconds that the rest takes at the present pace; None before the first item is done."""
    return max(0.0, work.seconds * work.total / work.done - (now - work.began)) if work.done else None


@contextmanager
def keeping(done: Sized, what: str) -> Iterator[None]:
    """An interruption (Ctrl-C) ends the block and keeps what is done so far; it is raised if nothing is done.

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
        _LINE.clear()
        print(f"interrupted: {len(done)} {what} are kept", file=sys.stderr)


def line(what: str, done: int, total: int, left: float | None, columns: int = COLUMNS) -> str:
    """What is written after some of the work; the bar is as long as the columns allow.

    >>> line("ablating", 15, 60, 15.0)
    'ablating #######....................... 15/60, 0:15 left'
    >>> line("ablating", 15, 60, None, columns=30)
    'ablating ###........... 15/60'
    """
    count = f"{done:>{len(str(total))}}/{total}"
    if left is not None:
        count += f", {round(left) // 60}:{round(left) % 60:02} left"
    width = min(WIDTH, columns - len(what) - len(count) - 3)
    bar = ("#" * int(width * done / total if total else width)).ljust(width, ".") + " " if width > 0 else ""
    return f"{what} {bar}{count}"[: columns - 1]
