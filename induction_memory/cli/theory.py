"""`theory`: check the paper's lemmas and its three-step theorem."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from induction_memory.tables import show


def theory(checks: Annotated[tuple[str, ...], tyro.conf.Positional] = (), /, out: Path | None = None) -> None:
    """Check the paper's lemmas and its three-step theorem, and end with one table.

    Args:
        checks: names of the checks; all by default.
        out: folder for the figures.
    """
    from induction_memory import theory as library

    table = library.run([*checks] or None, out=out)
    show(table, "table")
    if not bool(table["expected"].all()):
        sys.exit(1)
