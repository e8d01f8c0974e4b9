"""Progress of a sweep on the screen: a live table on a terminal, nothing elsewhere.

12 of 40 runs done, 2 running, 1 failed; 3:20 left
task.k-3_seed-1      step 140 of 300
task.k-5_seed-0      step 20 of 300
"""

import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from induction_memory.sweep.job import Job
from induction_memory.terminal import Progress

MOST_ROWS = 20
SECONDS_BETWEEN_PICTURES = 0.25


class Board:
    """Shows the jobs of a sweep; a context manager, so that it can clean up the terminal."""

    def __init__(self, jobs: Mapping[str, Job], progress: "Progress" = None, console: Console | None = None) -> None:
        self._jobs, self._progress, self._ended = jobs, progress, 0
        self._console = console or Console(stderr=True, highlight=False)
        self.is_live = self._console.is_terminal and progress is None
        self._live = Live(console=self._console, auto_refresh=False)
        self._began = time.monotonic()
        self._drawn = -SECONDS_BETWEEN_PICTURES
        self._before = sum(job.cost * share_done(job) for job in jobs.values()) if self.is_live else 0.0

    def __enter__(self) -> "Board":
        if self.is_live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_live:
            self._live.stop()

    def note(self, line: str) -> None:
        """Print a permanent line above the table, if lines are shown."""
        if self._progress is None:
            self._console.print(Text(line), soft_wrap=True)

    def show(self, done: Collection[str], failed: Collection[str], running: Callable[[], set[str]]) -> None:
        """Redraw the table, unless it was just drawn; call the `progress` function if more runs have ended."""
        if callable(self._progress) and (ended := len(done) + len(failed)) > self._ended:
            self._ended = ended
            self._progress(ended, len(self._jobs))
        if not self.is_live or time.monotonic() - self._drawn < SECONDS_BETWEEN_PICTURES:
            return
        self._drawn = time.monotonic()
        now = sorted(running() - set(done) - set(failed))
        ended = sum(self._jobs[name].cost for name in (*done, *failed))
        worked = ended + sum(self._jobs[name].cost * share_done(self._jobs[name]) for name in now)
        left = self._seconds_left(worked, sum(job.cost for job in self._jobs.values()))
        self._live.update(self._table(len(done), len(failed), now, left), refresh=True)

    def _seconds_left(self, worked: float, total: float) -> float | None:
        here = worked - self._before
        return (total - worked) * (time.monotonic() - self._began) / here if here > 0 else None

    def _table(self, done: int, failed: int, running: list[str], left: float | None) -> Table:
        table = Table.grid(padding=(0, 2))
        title = f"{done} of {len(self._jobs)} {unit(self._jobs)} done, {len(running)} running, {failed} failed"
        table.add_row(Text(title + ("" if left is None else f"; {clock(left)} left")))
        rows = Table.grid(padding=(0, 2))
        for name in running[:MOST_ROWS]:
            job = self._jobs[name]
            step = max(0, round(share_done(job) * (job.steps + 1)) - 1)
            rows.add_row(
                Text(name, overflow="ellipsis", no_wrap=True), f"step {step} of {job.steps}" if job.steps else ""
            )
        if len(running) > MOST_ROWS:
            rows.add_row(Text(f"and {len(running) - MOST_ROWS} more"), "")
        table.add_row(rows)
        return table


def unit(jobs: Mapping[str, Job]) -> str:
    """What the jobs are: runs, which have training steps, or steps of an analysis, which have none."""
    return "runs" if any(job.steps for job in jobs.values()) else "steps"


def share_done(job: Job) -> float:
    """The completed share of a run, from the number of lines of its metrics."""
    try:
        lines = (job.folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0.0
    return min(1.0, lines / (job.steps + 1))


def clock(seconds: float) -> str:
    """90 -> "1:30", 3,700 -> "1:01:40"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
