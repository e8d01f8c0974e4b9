"""`report`: the page of one or more runs."""

from pathlib import Path
from typing import Annotated

import tyro

from induction_memory.cli.arguments import load_any, step_of
from induction_memory.errors import InputError, printable, require
from induction_memory.files import require_file


def report(
    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ],
    /,
    out: Path,
    step: str = "all",
    sequences: int = 3,
    length: int = 64,
    budget: float = 8.0,
    quiet: bool = False,
) -> None:
    """Write a page of runs, or of a series, with a slider over training.

    It is one HTML file that works offline.

    Args:
        runs: folders of trajectories or of series of checkpoints, or names of shipped runs; several are shown side by
            side. A sweep's folder is shown as one table of its runs, with small curves.
        out: file to write, .html.
        step: stored steps to show: all (of a series at most 48), last, or a list such as 0,100,300.
        sequences: how many sequences the page offers.
        length: tokens per sequence.
        budget: largest size of the file in megabytes; a longer run is thinned, and the page says so.
        quiet: no progress.
    """
    if not runs:
        raise InputError("RUN: expected at least one trajectory's folder or name, got none")
    chosen = step_of(step)
    require(0.5 <= budget <= 1000, "--budget", "megabytes from 0.5 to 1000", budget)
    require_file(out, [".html"], "--out")
    if len(runs) == 1 and _holds_runs(Path(runs[0])):
        from induction_memory.sweep.sweep_page import page as sweep_page

        require(chosen == "all", "--step", "all: the page of a sweep shows whole runs", step)
        sweep_page(runs[0]).save(out)
        print(printable(str(out)))
        return
    opened = [load_any(run) for run in runs]
    from induction_memory.views.run_page import report as make

    page = make(
        opened,
        step=chosen,
        sequences=sequences,
        length=length,
        budget=int(budget * 1e6),
        progress=False if quiet else None,
    )
    page.save(out)
    print(printable(str(out)))


def _holds_runs(folder: Path) -> bool:
    """Whether a path is the folder of a sweep, or of runs, but not a run itself."""
    from induction_memory.trajectory.manifest import MANIFEST

    try:
        return not (folder / MANIFEST).exists() and any(folder.glob(f"*/{MANIFEST}"))
    except (OSError, ValueError):
        return False
