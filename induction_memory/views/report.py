"""The page of one or more runs: `report(run).save("run.html")`, or the last line of a notebook's cell.

It is one file that works offline: attention, memories, curves and causes under one slider over training. For the
simplified model it also has the weights, so that the reader can type a text, switch parts off and erase associations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from induction_memory.errors import InputError, require
from induction_memory.files import require_file, write_file
from induction_memory.task.fields import require_integer
from induction_memory.trajectory.revisions import Revisions, revisions
from induction_memory.trajectory.search import find, is_series
from induction_memory.trajectory.trajectory import Trajectory, load
from induction_memory.views.attention_page import framed
from induction_memory.views.page.budget import within
from induction_memory.views.page.document import document
from induction_memory.views.page.gather import EVALUATED, LENGTH, Progress, gather
from induction_memory.views.page.pack import Pack
from induction_memory.views.series_report import SeriesReport, series_report

MOST_RUNS = 4
MOST_TOKENS = 4096
BUDGET = 8_000_000  # bytes of the HTML file


@dataclass(frozen=True, eq=False)
class Report:
    """A page that shows itself in a notebook and can be saved."""

    title: str
    pack: Pack

    def __repr__(self) -> str:
        runs = ", ".join(run["name"] for run in self.pack.meta["runs"])
        return f"Report({runs}: {len(self.html()) / 1e6:.1f} MB of HTML)"

    @cached_property
    def _document(self) -> str:
        induction = all(run["triggers"] for run in self.pack.meta["runs"])
        return document(self.title, self.pack.blob(), induction=induction)

    def html(self) -> str:
        """The whole page."""
        return self._document

    def save(self, path: str | Path) -> Path:
        """Write the page to an .html file."""
        path = require_file(path, [".html"])
        write_file(path, self.html())
        return path

    def _repr_html_(self) -> str:
        return framed(self.html(), height=900)

    def widget(self, step: int | None = None) -> Any:
        """The page as an anywidget with a two-way `step`; needs a running kernel and the package `anywidget`."""
        from induction_memory.views.widget import widget

        return widget(self, step)


def report(
    sources: Any,
    *,
    steps: Sequence[int] | None = None,
    sequences: int = 3,
    length: int = LENGTH,
    causal_steps: int = 10,
    budget: int = BUDGET,
    title: str | None = None,
    progress: Progress | None = None,
) -> Report | SeriesReport:
    """The page of one run, or of several side by side (trajectories, their folders or shipped names), or of a series.

    `steps` are the stored steps that it shows, all by default. It shows `sequences` sequences of `length` tokens, and
    measures ablations and roles at up to `causal_steps` steps. A page over `budget` bytes is made smaller, and says
    how: numbers behind colours get 8 bits instead of 16, then fewer sequences are shown, then fewer steps.

    >>> import tempfile
    >>> import induction_memory as im
    >>> page = im.report("markov-1", steps=[1500], sequences=1, causal_steps=1)
    >>> page.save(f"{tempfile.mkdtemp()}/page.html").name
    'page.html'
    """
    listed = list(sources) if isinstance(sources, list | tuple) else [sources]
    series = [one for one in map(_series, listed) if one is not None]
    if series:
        require(len(listed) == 1, "runs", "a series of checkpoints alone", f"{len(listed)} runs")
        return series_report(series[0] if steps is None else series[0].at(steps), progress=progress)
    require(1 <= len(listed) <= MOST_RUNS, "runs", f"1 to {MOST_RUNS} runs", len(listed))
    require_integer(sequences, "sequences", 1, EVALUATED)
    require_integer(length, "length", 1, MOST_TOKENS)
    require_integer(causal_steps, "causal_steps", 1, 10_000)
    require_integer(budget, "budget", 500_000, 10**10, "bytes")
    runs = [_opened(source) for source in listed]
    chosen = [list(map(int, run.resolve_all(steps))) for run in runs]
    title = title or " and ".join(run.name for run in runs)
    say = progress or (lambda message: None)
    packs = [
        gather(run, at, shown=sequences, length=length, causal_steps=causal_steps, bits=16, progress=say)
        for run, at in zip(runs, chosen, strict=True)
    ]
    return Report(title, within(packs, title, budget))


def _series(source: Any) -> Revisions | None:
    """The series of checkpoints that a source is, or None."""
    if isinstance(source, str | Path):
        folder = find(source)
        return revisions(folder) if is_series(folder) else None
    return source if isinstance(source, Revisions) else None


def _opened(source: Any) -> Trajectory:
    run = load(source) if isinstance(source, str | Path) else source
    if not isinstance(run, Trajectory):
        raise InputError(f"runs: expected trajectories, their folders or names, got {type(source).__name__}")
    run.require_steps()
    require(_knows_task(run), "runs", "a run whose task is known", f"{run.name}, imported without one")
    return run


def _knows_task(run: Trajectory) -> bool:
    try:
        return run.task is not None
    except InputError:
        return False
