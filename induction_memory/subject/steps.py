"""Which steps of a trajectory, of a series or of a stack of weights are meant: one, several, all, or the last."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int

from induction_memory.errors import require
from induction_memory.trajectory.revisions import Pairs, Revisions
from induction_memory.trajectory.trajectory import Trajectory

Steps = int | np.integer | Literal["all", "last"] | Sequence[int] | Sequence[np.integer] | np.ndarray | None


def chosen_steps(run: Trajectory, step: Steps, field: str = "step") -> list[int]:
    """The stored steps that `step` asks for, in the order of training: one, several, all, or the last."""
    run.require_steps()
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), field, "a stored step, a list of them, 'last' or 'all'", repr(step))
        return [int(s) for s in (run.steps if step == "all" else run.steps[-1:])]
    wanted = np.atleast_1d(np.asarray(step)).tolist()
    require(len(wanted) > 0, field, "at least one step", "none")
    return sorted({run.resolve(one) for one in wanted})


def chosen_checkpoints(series: Revisions, step: Steps, field: str) -> Revisions:
    """The checkpoints that `step` asks for: one, several, all, or the last."""
    if isinstance(series, Pairs):
        require(isinstance(step, str) and step == "all", field, "'all' for pairs of steps and models", repr(step))
        return series
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), field, "a stored step, a list of them, 'last' or 'all'", repr(step))
        return series if step == "all" else series.at(int(series.steps[-1]))
    return series.at([int(one) for one in np.atleast_1d(np.asarray(step)).tolist()])


def chosen_positions(available: int, step: Steps, field: str) -> Int[np.ndarray, " step"]:
    """The positions in a stack that `step` asks for."""
    if step is None or isinstance(step, str):
        require(step in (None, "all", "last"), field, "'all' or positions in the stack", repr(step))
        return np.arange(available) if step == "all" else np.array([available - 1])
    wanted = np.unique(np.asarray(step)).tolist()
    require(len(wanted) > 0, field, "at least one step", "none")
    for one in wanted:
        require(one in range(available), field, f"0 to {available - 1} (positions in the stack)", one)
    return np.array(wanted)
