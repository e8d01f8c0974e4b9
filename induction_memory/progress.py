"""A progress bar for work that takes more than a moment, in a terminal and in a notebook.

The bar appears after one second, so that quick calls stay silent, and disappears when the work is done. It goes to
standard error and only to a person: where neither a terminal nor a notebook is at hand, nothing is shown.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

PATIENCE = 1.0
"""Seconds before a bar appears."""


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items one by one, with a bar that says what is done and how much of it is left.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        yield from items
        return
    yield from _shown(items, what, total)


def _shown(items: Iterable[Item], what: str, total: int | None) -> Iterator[Item]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = total if total is not None or not hasattr(items, "__len__") else len(items)  # pyright: ignore[reportArgumentType]
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task, began = bar.add_task(what, total=total), time.monotonic()
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not bar.live.is_started and time.monotonic() - began > PATIENCE:
                bar.start()
    finally:
        bar.stop()
