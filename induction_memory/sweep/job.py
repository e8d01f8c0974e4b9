"""What an engine receives and returns: a job is a function's name with plain values.

The function runs in a separate process (`child.py`), here or on another machine. Only JSON is sent, so a job is the
same bytes everywhere.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

State = Literal["done", "mistake", "failed", "busy", "died", "stopped"]


@dataclass(frozen=True)
class Job:
    """One run to train, or anything else that takes a while and keeps its results in a folder."""

    name: str
    work: str
    """The function, as "module:function"; it is called with `arguments` by name."""
    arguments: Mapping[str, Any]
    """Plain values, as JSON has them."""
    folder: Path
    """The folder with its metrics."""
    steps: int = 1
    """Number of lines of metrics when it is done, minus one."""
    cost: float = 1.0
    """Its share of the time, in any unit."""


@dataclass(frozen=True)
class Outcome:
    """How one attempt at a job ended.

    done: it succeeded. mistake: an error that the user can correct. failed: any other error. busy: another process
    holds the folder. died: its process was killed. stopped: the engine was told to stop.
    """

    state: State
    error: str = ""
    seconds: float = field(default=0.0, compare=False)

    def to_dict(self) -> dict[str, Any]:
        return {"state": self.state, "error": self.error, "seconds": self.seconds}


@runtime_checkable
class Engine(Protocol):
    """Something that runs jobs: a pool of processes here, or a cluster."""

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        ...

    def next(self, timeout: float) -> tuple[str, Outcome] | None:
        """The name of a job whose attempt has ended, and its outcome; None if none ends within `timeout` seconds."""
        ...

    def running(self) -> set[str]:
        """The names of the jobs that run now."""
        ...

    def close(self) -> None:
        """Stop the jobs that still run."""
        ...


def path_of(function: Callable[..., object]) -> str:
    """ "module:function" of a function, also of one in the script that runs."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(str(main.__file__)).stem
    return f"{module}:{function.__name__}"


def function_at(path: str) -> Callable[..., object]:
    """The inverse of `path_of`."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def train(config: dict[str, Any], out: str, command: str) -> None:
    """Train one run into its folder, or resume it."""
    from induction_memory.experiment.run_config import RunConfig
    from induction_memory.training.run import start

    start(RunConfig.from_dict(config), out, resume="or start", quiet=True, command=command)
