"""Find a run by its name or folder, and steps by `step`.

A name is searched in these folders, in this order:

    1. the folders in the environment variable INDUCTION_MEMORY_PATH, separated by ":" as in PATH
    2. ./checkpoints
    3. checkpoints/ of the source tree, if the package is used from one
    4. the package itself, which contains one small trajectory: induction-small
"""

import os
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from jaxtyping import Int

from induction_memory.errors import InputError, nearest, require
from induction_memory.trajectory.manifest import CONFIG, MANIFEST

VARIABLE = "INDUCTION_MEMORY_PATH"
SOURCE = "https://github.com/ORGANISATION/induction_memory"
SHIPPED = Path(__file__).parents[2] / "checkpoints"
"""The shipped trajectories, in the source tree."""
PACKAGED = Path(__file__).parent / "data"
"""The trajectory that is part of the package."""
Steps = int | np.integer | Literal["all", "last"] | Sequence[int] | Sequence[np.integer] | np.ndarray | None
"""One step, several, "all", or the last (also None or -1)."""


def search_path() -> list[Path]:
    """The folders in which names are searched."""
    own = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return [*map(Path, own), Path("checkpoints"), SHIPPED, PACKAGED]


def find(path: str | Path) -> Path:
    """The folder of a path or a name."""
    require(isinstance(path, str | PathLike), "run", "the folder or the name of a trajectory", repr(path))
    require(str(path) != "", "run", "the folder or the name of a trajectory", "nothing")
    for place in (Path(), *search_path()):
        if os.path.isdir(place / path):  # also for names that are too long, or with a null character in them
            return place / path
    names = sorted({p.parent.name for place in search_path() for p in place.glob(f"*/{MANIFEST}")})
    near, got = nearest(path, names), f"{str(path)[:200]!r}"
    if near:
        told = f"run: expected the folder of a trajectory or a known name, got {got}{near}"
        raise InputError(told, entry="unknown-run")
    raise InputError(
        f"run: expected the folder of a trajectory or one of {', '.join(names)}, got {got} (the shipped "
        f"ones are in checkpoints/ of the source: git clone {SOURCE}, and name that folder in {VARIABLE})",
        entry="unknown-run",
    )


def is_series(path: Path) -> bool:
    """Whether a folder is a series: it holds folders of checkpoints, or is a local Hub cache."""
    return not (path / MANIFEST).exists() and ((path / "snapshots").is_dir() or len(checkpoint_folders(path)) > 0)


def checkpoint_folders(path: Path) -> dict[str, Path]:
    """The folders of checkpoints in a folder, by name."""
    return {p.name: p for p in sorted(path.iterdir()) if p.is_dir() and (p / CONFIG).exists()}


def chosen_steps(stored: Int[np.ndarray, " step"], step: Steps, resolve: Callable[[int], int]) -> list[int]:
    """The steps that `step` means, in the order of training. None and -1 mean the last."""
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), "step", "a stored step, a list of them, 'last' or 'all'", repr(step))
        return (stored if step == "all" else stored[-1:]).tolist()
    wanted = np.atleast_1d(np.asarray(step)).tolist()
    require(len(wanted) > 0, "step", "at least one step", "none")
    return sorted({int(stored[-1]) if one == -1 else resolve(one) for one in wanted})


Model = TypeVar("Model")


class ByStep(Generic[Model]):
    """A run or a series as a mapping from its stored steps to its models.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> len(run), list(run), 300 in run
    (5, [0, 100, 200, 300, 600], True)
    >>> type(run[300]).__name__  # run[-1] is the last step's
    'HookedTransformer'
    """

    name: str
    steps: Any

    def model(self, step: Any) -> Model:
        """The model of one step."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps.tolist())

    def __contains__(self, step: object) -> bool:
        return step in self.steps.tolist()

    def __getitem__(self, step: Any) -> Model:
        return self.model(self.resolve(step))

    def items(self) -> Iterator[tuple[int, Model]]:
        """Step and model, each a new model. Release it before the next one, so that only one is in memory."""
        for step in self:
            yield step, self.model(step)

    def choose(self, step: "Steps") -> list[int]:
        """The stored steps that `step` means: one, several, "all", or the last."""
        self.require_steps()
        return chosen_steps(self.steps, step, self.resolve)

    def resolve(self, step: Any, nearest: bool = False) -> int:
        """`step` if it is stored, the last if -1, or with `nearest` the closest; otherwise an error names its
        neighbours."""
        self.require_steps()
        whole = isinstance(step, Integral) or (isinstance(step, float | np.floating) and float(step).is_integer())
        require(whole and not isinstance(step, bool), "step", "a whole number", repr(step))
        stored = self.steps
        if step == -1:
            return int(stored[-1])
        if nearest:  # the earlier one if two are equally close
            return int(stored[np.abs(stored - step).argmin()])
        if step not in stored:
            around = " and ".join(map(str, [*stored[stored < step][-1:], *stored[stored > step][:1]]))
            raise InputError(
                f"step: expected one of the {len(stored)} stored steps ({stored[0]} to {stored[-1]}; "
                f"next to it {around}), got {int(step)}",
                entry="step-not-stored",
            )
        return int(step)

    def require_steps(self) -> None:
        """Raise an InputError if no step is stored yet."""
        if not len(self.steps):
            raise InputError(f"{self.name}: expected at least one stored step, got none yet")
