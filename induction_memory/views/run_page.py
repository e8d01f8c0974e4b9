"""The page of runs, or of a series of checkpoints: `report(run).save("run.html")`, or a notebook cell's last line.

It is one file that works offline: attention, memories, curves and causes under one slider over training. For the
simplified model it also has the weights, so that one can type a text, switch components off and erase associations.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from induction_memory.errors import InputError, require
from induction_memory.fields import require_integer
from induction_memory.source.sources import Source, open_source
from induction_memory.terminal import Progress, track
from induction_memory.trajectory.search import Steps
from induction_memory.trajectory.series import Revisions
from induction_memory.views.page.document import Page, document
from induction_memory.views.page.gather import EVALUATED, LENGTH, PARTS, gather, spread
from induction_memory.views.page.pack import Pack, within

MOST_RUNS = 4
MOST_TOKENS = 4096
MOST_CHECKPOINTS = 48
"""Most steps of a series on the page, chosen evenly: each reads a whole model."""
BUDGET = 8_000_000  # bytes of the HTML file


@dataclass(frozen=True, eq=False, repr=False)
class Report(Page):
    """The page with the data behind it."""

    pack: Pack

    def widget(self, step: int | None = None) -> Any:
        """The page as an anywidget with a two-way `step`; needs a running kernel and the package `anywidget`."""
        from induction_memory.views.widget import widget

        return widget(self, step)


def report(
    source: Any,
    *,
    step: "Steps" = "all",
    sequences: int = 3,
    length: int = LENGTH,
    causal_steps: int = 10,
    budget: int = BUDGET,
    title: str | None = None,
    progress: "Progress" = None,
) -> Report:
    """The page of one run or series, or of several side by side (also their folders, or names of shipped runs).

    `step` chooses the stored steps to show: by default all, for a series at most 48. The page shows `sequences`
    sequences of `length` tokens, with ablations and roles at up to `causal_steps` steps. A page over `budget` bytes is
    reduced, and says how: 8 bits instead of 16 for numbers behind colours, then fewer sequences, then fewer steps.

    >>> import tempfile
    >>> import induction_memory as im
    >>> page = im.report("markov-1", step=[1500], sequences=1, causal_steps=1)
    >>> page.save(f"{tempfile.mkdtemp()}/page.html").name
    'page.html'
    """
    listed = list(source) if isinstance(source, list | tuple) else [source]
    require(1 <= len(listed) <= MOST_RUNS, "source", f"1 to {MOST_RUNS} runs", len(listed))
    require_integer(sequences, "sequences", 1, EVALUATED)
    require_integer(length, "length", 1, MOST_TOKENS)
    require_integer(causal_steps, "causal_steps", 1, 10_000)
    require_integer(budget, "budget", 500_000, 10**10, "bytes")
    opened: list[tuple[Source, list[int]]] = []
    for one in listed:
        found = open_source(one)
        if not found.has_steps:
            raise InputError(f"source: expected runs or series, their folders or names, got {found.name}")
        chosen = found.choose(step)
        require(len(chosen) > 0, "source", "checkpoints on the disk, which can be read again", found.name)
        if isinstance(found, Revisions) and not isinstance(step, str):
            found = found.at(chosen)  # the others are not read at all
        opened.append((found, spread(chosen, MOST_CHECKPOINTS) if isinstance(found, Revisions) else chosen))
    packs, names = [], []
    with closing(track(range(PARTS * len(opened)), "parts of the page", progress=progress)) as parts:
        for found, shown in opened:
            at = spread(shown, causal_steps)
            packs.append(gather(found, shown, at, shown=sequences, length=length, parts=parts))
            names.append(found.name)
        next(parts, None)
    title = title or " and ".join(names)
    pack = within(packs, title, budget)
    return Report(title, document(title, pack.blob(), induction=pack.of_triggers), pack)
