"""`verify`: check every checksum of a trajectory, or find problems in a series of checkpoints."""

import sys

from induction_memory.cli.arguments import Run, load_any
from induction_memory.errors import printable


def verify(run: Run, /) -> None:
    """Check every checksum of a trajectory; exit 1 and name damaged files.

    In a series: duplicates, gaps, jumps, and checkpoints that would be refused.

    It also finds changed configurations and tokenizers.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
    """
    from induction_memory.trajectory import verification
    from induction_memory.trajectory.search import find, is_series

    damaged = verification.verify(run)
    for line in damaged:
        print(line, file=sys.stderr)
    if damaged:
        sys.exit(1)
    checked = load_any(run)
    if is_series(find(run)):
        found = f"{len(checked)} checkpoints, nothing odd"
    else:
        rounded = f"; {len(checked.rounded)} of {len(checked.steps)} steps are rounded" if len(checked.rounded) else ""
        found = f"every checksum holds{rounded}"
    print(f"{printable(run)}: {found}")
