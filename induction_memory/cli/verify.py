"""`verify`: check every checksum of a trajectory."""

import sys

from induction_memory.cli.arguments import Run
from induction_memory.errors import printable


def verify(run: Run, /) -> None:
    """Check every checksum of a trajectory; exit 1 names what is damaged.

    Args:
        run: trajectory's folder, or the name of a shipped one.
    """
    from induction_memory.trajectory.search import find
    from induction_memory.trajectory.verification import verify as check

    damaged = check(find(run))
    for line in damaged:
        print(line, file=sys.stderr)
    if damaged:
        sys.exit(1)
    print(f"{printable(run)}: every checksum holds")
