"""Trajectories on the disk: the border between what is expensive to compute and what is cheap to read."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from induction_memory.trajectory.durable import StorageError as StorageError
    from induction_memory.trajectory.sealed import DamagedError as DamagedError
    from induction_memory.trajectory.thinning import thin as thin
    from induction_memory.trajectory.trajectory import Trajectory as Trajectory
    from induction_memory.trajectory.trajectory import load as load
    from induction_memory.trajectory.verification import verify as verify

_WHERE = {
    "DamagedError": "sealed",
    "StorageError": "durable",
    "Trajectory": "trajectory",
    "load": "trajectory",
    "thin": "thinning",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
