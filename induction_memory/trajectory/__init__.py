"""Trajectories on the disk: training writes them once, and every analysis reads them."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.trajectory.thinning import thin as thin
    from induction_memory.trajectory.trajectory import Trajectory as Trajectory
    from induction_memory.trajectory.trajectory import load as load
    from induction_memory.trajectory.verification import verify as verify

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
