"""What a person sees of a run: a live line on a terminal, plain lines elsewhere, or nothing.

    step 300/1000  loss 1.234  in context 0.91  W_K1 0.98  W_K2 1.00  W_O2 1.00  2.9 steps/s  4:02 left

Everything goes to standard error: standard output is for results.
"""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from induction_memory.training.loop import Snapshot
from induction_memory.training.metrics import Metrics
from induction_memory.training.recalls import recalls

PLAIN_LINES = 20  # a whole run's, where there is no terminal
RECALL_SECONDS = 2.0  # between two measurements of the recalls


class Progress:
    """Follows a run from its first step to its last; a context manager, so that the terminal is left tidy."""

    def __init__(self, first: int, last: int, task: Any, *, quiet: bool = False, console: Console | None = None):
        self._first, self._last, self._task, self._quiet = first, last, task, quiet
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._started = time.perf_counter()
        self._measured = -RECALL_SECONDS
        self._recalls: dict[str, float] = {}

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def __enter__(self) -> "Progress":
        if self._is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_live:
            self._live.stop()

    def note(self, text: str) -> None:
        """A line of its own, unless quiet."""
        if not self._quiet:
            self._console.print(text, markup=False, soft_wrap=True)

    def update(self, snapshot: Snapshot) -> None:
        """Show a step."""
        if self._quiet:
            return
        every = max(1, (self._last - self._first) // PLAIN_LINES)
        shown = (snapshot.step - self._first) % every == 0 or snapshot.step == self._last
        if not self._is_live and not shown:
            return
        elapsed = time.perf_counter() - self._started
        if not self._is_live or elapsed - self._measured >= RECALL_SECONDS or snapshot.step == self._last:
            self._measured, self._recalls = elapsed, recalls(snapshot.model, self._task)
        line = describe(snapshot.metrics, self._recalls, self._first, self._last, elapsed)
        if self._is_live:
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
        else:
            self._console.print(line, markup=False, soft_wrap=True)


def describe(metrics: Metrics, recalled: dict[str, float], first: int, last: int, elapsed: float) -> str:
    """The line of a step, `elapsed` seconds after the step `first`."""
    parts = [f"step {metrics.step}/{last}", f"loss {metrics.loss:.3f}"]
    accuracy = metrics.accuracies.get(metrics.main)
    if accuracy is not None:
        parts.append(f"{metrics.main.replace('_', ' ')} {accuracy:.2f}")
    parts += [f"{name} {value:.2f}" for name, value in recalled.items()]
    done = metrics.step - first
    if done and elapsed > 0:
        left = round((last - metrics.step) * elapsed / done)
        parts += [f"{done / elapsed:.3g} steps/s", f"{left // 60}:{left % 60:02d} left"]
    return "  ".join(parts)
