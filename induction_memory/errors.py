"""The one error a caller's mistake raises.

The command line and the scripts of analyses/ print it as a single line and exit with code 2; in Python it is a
ValueError.
"""

import sys
from collections.abc import Callable
from pathlib import Path


class InputError(ValueError):
    """`field: expected ..., got ...`, for something the caller can put right."""


def require(condition: bool, field: str, expected: str, got: object) -> None:
    """Raise an InputError that names the field, what is allowed and what came, unless `condition` holds."""
    if not condition:
        raise InputError(f"{field}: expected {expected}, got {got}")


def run_script(main: Callable[..., None], about: str | None) -> None:
    """Call `main` with the command line's arguments; a mistake is one line on standard error and exit code 2."""
    import tyro

    try:
        tyro.cli(main, description=about)
    except InputError as mistake:
        print(f"{Path(sys.argv[0]).stem}: {mistake}", file=sys.stderr)
        sys.exit(2)
