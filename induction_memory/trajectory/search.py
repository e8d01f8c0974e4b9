"""Where trajectories are found by name.

A name is looked for in these folders, in this order:

    1. those in the environment variable INDUCTION_MEMORY_PATH, separated by ":" as in PATH
    2. ./checkpoints
    3. checkpoints/ of the source tree, if the package is used from one
    4. the package itself, which contains one small trajectory: induction-small
"""

import os
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from induction_memory.errors import InputError, require
from induction_memory.trajectory.layout import CONFIG, MANIFEST

VARIABLE = "INDUCTION_MEMORY_PATH"
SHIPPED = Path(__file__).parents[2] / "checkpoints"
"""The shipped trajectories, in the source tree."""
PACKAGED = Path(__file__).parent / "data"
"""The trajectory that is part of the package."""


def search_path() -> list[Path]:
    """The folders in which names are looked for."""
    own = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    return [*own, Path("checkpoints"), SHIPPED, PACKAGED]


def find(path: str | Path) -> Path:
    """The folder that a path or a name stands for."""
    require(isinstance(path, str | PathLike), "run", "the folder or the name of a trajectory", repr(path))
    require(str(path) != "", "run", "the folder or the name of a trajectory", "nothing")
    for place in (Path(), *search_path()):
        if os.path.isdir(place / path):  # also for names that are too long, or with a null character in them
            return place / path
    names = sorted({p.parent.name for place in search_path() for p in place.glob(f"*/{MANIFEST}")})
    near, got = get_close_matches(str(path), names, n=1), f"{str(path)[:200]!r}"
    if near:
        told = f"run: expected the folder of a trajectory or a known name, got {got}; did you mean {near[0]}?"
        raise InputError(told, entry="unknown-run")
    raise InputError(
        f"run: expected the folder of a trajectory or one of {', '.join(names)}, got {got} (the shipped "
        f"ones lie in checkpoints/ of the source; {VARIABLE} names folders that hold others)",
        entry="unknown-run",
    )


def require_run(folder: Path) -> None:
    """Refuse a folder in which there is no run, no exported step and no series of checkpoints."""
    if not ((folder / MANIFEST).exists() or (folder / CONFIG).is_file() or is_series(folder)):
        raise InputError(f"{folder}: expected a trajectory (a folder with {MANIFEST}), got none there")


def is_series(path: Path) -> bool:
    """Whether a folder holds folders of checkpoints that others trained, or is a local Hub cache."""
    return not (path / MANIFEST).exists() and ((path / "snapshots").is_dir() or len(checkpoint_folders(path)) > 0)


def checkpoint_folders(path: Path) -> dict[str, Path]:
    """The folders of checkpoints in a folder, by name."""
    return {p.name: p for p in sorted(path.iterdir()) if p.is_dir() and (p / CONFIG).exists()}
