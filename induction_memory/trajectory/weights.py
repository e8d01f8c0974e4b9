"""Weights at steps: which steps are meant, and weights by name that are read when they are used."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int
from torch import Tensor

from induction_memory.errors import require

Steps = int | np.integer | Literal["all", "last"] | Sequence[int] | Sequence[np.integer] | np.ndarray | None


def chosen_steps(stored: Int[np.ndarray, " step"], step: Steps, resolve: Callable[[int], int]) -> list[int]:
    """The steps that `step` means, in the order of training; the last one when not given. -1 is the last one too."""
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), "step", "a stored step, a list of them, 'last' or 'all'", repr(step))
        return [int(one) for one in (stored if step == "all" else stored[-1:])]
    wanted = np.atleast_1d(np.asarray(step)).tolist()
    require(len(wanted) > 0, "step", "at least one step", "none")
    return sorted({int(stored[-1]) if one == -1 else resolve(one) for one in wanted})


class LazyWeights(Mapping[str, Tensor]):
    """Weights by name, each read when it is first used, and kept."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Tensor]) -> None:
        self._names, self._read = dict.fromkeys(names), read
        self._kept: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._kept:
            if name not in self._names:
                raise KeyError(name)
            self._kept[name] = self._read(name)
        return self._kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
