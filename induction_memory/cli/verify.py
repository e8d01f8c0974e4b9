"""`verify`: check every checksum of a trajectory, or what is odd about a series of others' checkpoints."""

import sys
from typing import TYPE_CHECKING

from induction_memory.cli.arguments import Run, load_any
from induction_memory.errors import printable

if TYPE_CHECKING:
    from pathlib import Path

    from induction_memory.trajectory.series import Revisions


def verify(run: Run, /) -> None:
    """Check every checksum of a trajectory; exit 1 names what is damaged.

    In a folder of checkpoints that others trained it finds duplicates and gaps.

    It also finds jumps, unreadable files, changed configurations and tokenizers.

    Args:
        run: trajectory's folder or the name of a shipped one, or a folder of checkpoints that others trained.
    """
    from induction_memory.trajectory.layout import MANIFEST
    from induction_memory.trajectory.search import find, require_run

    folder = find(run)
    require_run(folder)
    series = None if (folder / MANIFEST).exists() else _series(run)
    if series is None:
        from induction_memory.trajectory.verification import verify as check

        damaged = check(folder)
    else:
        from induction_memory.trajectory.verification import lines

        damaged = lines(series)
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


def _series(run: str) -> "Revisions | None":
    """The series in a folder, or None."""
    from induction_memory.trajectory.search import find, is_series

    if not is_series(find(run)):
        return None
    from induction_memory.trajectory.series import Revisions

    opened = load_any(run)
    return opened if isinstance(opened, Revisions) else None
