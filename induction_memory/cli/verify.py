"""`verify`: check every checksum of a trajectory, or find problems in a series of checkpoints."""

import sys
from typing import TYPE_CHECKING

from induction_memory.cli.arguments import Run, load_any
from induction_memory.errors import printable

if TYPE_CHECKING:
    from pathlib import Path


def verify(run: Run, /) -> None:
    """Check every checksum of a trajectory; exit 1 and name damaged files.

    In a series it finds duplicates, gaps, jumps and unreadable files.

    It also finds changed configurations and tokenizers.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
    """
    from induction_memory.trajectory import verification
    from induction_memory.trajectory.search import find, is_series

    folder = find(run)
    series = load_any(run) if is_series(folder) else None
    damaged = verification.verify(folder) if series is None else verification.lines(series)
    for line in damaged:
        print(line, file=sys.stderr)
    if damaged:
        sys.exit(1)
    found = _sound(folder) if series is None else f"{len(series)} checkpoints, nothing odd"
    print(f"{printable(run)}: {found}")


def _sound(folder: "Path") -> str:
    from induction_memory.trajectory.trajectory import load

    run = load(folder)
    rounded = f"; {len(run.rounded)} of {len(run.steps)} steps are rounded" if len(run.rounded) else ""
    return f"every checksum holds{rounded}"
