"""Training: configuration, the fast forward and backward, the loop, and runs that keep their trajectory.

Names are resolved when first used, so that a config needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from induction_memory.training.config import TrainConfig as TrainConfig
    from induction_memory.training.loop import Snapshot as Snapshot
    from induction_memory.training.loop import train as train
    from induction_memory.training.run import branch as branch
    from induction_memory.training.run import start as start
    from induction_memory.training.run_config import RunConfig as RunConfig

_WHERE = {
    "TrainConfig": "config",
    "RunConfig": "run_config",
    "Snapshot": "loop",
    "train": "loop",
    "start": "run",
    "branch": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
