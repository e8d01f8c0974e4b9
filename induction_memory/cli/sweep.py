"""`sweep`: many runs from one file."""

import sys
import time
from pathlib import Path
from typing import Annotated

import tyro

from induction_memory.cli.arguments import OptionalInt, OptionalStr
from induction_memory.errors import InputError, printable


def sweep(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    out: Path,
    workers: OptionalInt = None,
    scheduler: OptionalStr = None,
    dry_run: bool = False,
    quiet: bool = False,
) -> None:
    """Train every run of a sweep's file, or resume a sweep that was stopped.

    Args:
        file: TOML file with a preset, a grid or a list of settings, and seeds.
        out: folder of the runs, one folder per run.
        workers: runs at a time on this machine, each with one thread; 2 by default.
        scheduler: address of a Dask scheduler that gives the runs to its workers instead.
        dry_run: list what would run, with an estimate of time and disk.
        quiet: no live table, no notes.
    """
    from induction_memory.sweep.loop import require_workers, start

    if workers is not None and scheduler is not None:
        raise InputError("--workers: expected it or --scheduler, got both")
    workers = require_workers(2 if workers is None else workers)
    if dry_run:
        _list(file, out, workers)
        return
    ended = start(file, out, workers=workers, scheduler=scheduler, progress=False if quiet else None)
    if not quiet:
        before = f", {len(ended.skipped)} done before" if ended.skipped else ""
        print(f"{len(ended.done)} runs trained{before}, {len(ended.failed)} failed, in {printable(str(out))}")
    for error in dict.fromkeys(ended.failed.values()):
        names = [name for name in ended.failed if ended.failed[name] == error]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"{names[0]}{more} failed: {error}", file=sys.stderr)
    if ended.failed:
        sys.exit(1)


def _list(file: Path, out: Path, workers: int) -> None:
    from induction_memory.sweep import plan
    from induction_memory.sweep.board import clock, share_done
    from induction_memory.sweep.loop import job_of, look
    from induction_memory.sweep.plan import estimate, total

    runs = plan.read(file).runs
    states = look(runs, out)
    shares = {run.name: share_done(job_of(run, out)) for run in runs if states[run.name] == "begun"}
    found = estimate(runs, states, shares)
    width = max(len(one.name) for one in found)
    print(f"{'run':<{width}}  state  {'steps':>8}  {'time':>9}  {'disk':>9}")
    for one in found:
        print(
            f"{one.name:<{width}}  {one.state:<5}  {one.steps:>8}  {clock(one.seconds):>9}  {_megabytes(one.disk):>9}"
        )
    seconds, disk = total(found, workers)
    left = sum(one.state != "done" for one in found)
    seconds += time.process_time() if left else 0.0  # a worker starts as this process did
    twice = "a run takes twice its size while it is packed"
    about = f"about {clock(seconds)} on {workers} workers, {_megabytes(disk)} of disk at most ({twice})"
    print(f"{left} of {len(found)} runs to train: {about}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
