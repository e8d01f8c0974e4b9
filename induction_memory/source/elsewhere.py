"""Steps of a source measured in other processes, on this machine or on a cluster.

A step is sent as the address of its weights, the sequences, and the name of a function of this package with its
arguments, all as JSON. The process reads the checkpoint itself and keeps the tables under the caller's key. So results
are kept at once, and a step whose process was killed is measured again. The tables have the same bits as with one
process and one thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from induction_memory.errors import InputError, require
from induction_memory.source.store import Store, code
from induction_memory.task.protocol import Task, from_dict, to_dict
from induction_memory.terminal import Progress


@runtime_checkable
class Engine(Protocol):
    """Calls functions in other processes, as `im.sweep.Workers` does."""

    def run(
        self,
        function: Callable[..., None],
        calls: Mapping[str, Mapping[str, Any]],
        folder: Path,
        progress: Progress = None,
    ) -> None:
        """Call a function of a module with each of the plain arguments; the first error is raised after all calls."""
        ...


def measure_elsewhere(chosen: Any, what: Callable[..., Any], keys: Mapping[int, str]) -> None:
    """Measure steps with the engine of a selection and keep the tables under their keys."""
    function, arguments = (what.func, what.keywords) if isinstance(what, partial) else (what, {})
    source, keep = chosen.source, Path(chosen.source.keep).absolute()
    own_task = None if chosen.task is source.task else chosen.task
    sequences = chosen.batch if chosen.task is None else chosen.given
    call = {"function": _path(function), "keep": str(keep)}
    call |= {"arguments": _sent(arguments), "task": _sent(own_task), "batch": _sent(sequences)}
    call |= {"drawn": chosen.drawn, "initial": _sent(chosen.given_initial), "via": chosen.via}
    calls = {
        f"{source.name} at step {step}": {"source": _address(source, step), "step": step, "key": key, **call}
        for step, key in keys.items()
    }
    chosen.engine.run(measure_step, calls, keep, chosen.progress)


def measure_step(
    source: Any,
    step: int,
    key: str,
    function: str,
    keep: str,
    arguments: Any,
    task: Any,
    batch: Any,
    drawn: int,
    initial: Any,
    via: Any,
) -> None:
    """Measure one step in this process and keep the tables under the caller's key."""
    from induction_memory.source.sources import Selection

    opened = _opened(source)
    same = key.endswith(f"\n{opened.identity(step)}\n{code()}")
    require(same, "engine", "workers with the caller's package and checkpoints", "others")
    given = {"given_initial": _received(initial), "via": via, "progress": False}
    task, steps = _received(task) or opened.task, np.array([step], dtype=np.int64)
    at = Selection(opened, steps, task, _received(batch), drawn, **given).at()
    Store(Path(keep)).put(key, dict(_at(function)(at, **_received(arguments))))


def _address(source: Any, step: int) -> Any:
    """A run's folder, or the name and folder of one checkpoint of a series."""
    if hasattr(source, "path"):
        return str(source.path.absolute())
    (one,) = source.at(step).checkpoints
    return {one.name: str(one.folder.absolute())}


def _opened(address: Any) -> Any:
    from induction_memory.source.sources import open_source
    from induction_memory.trajectory.series import Revisions, in_order

    if isinstance(address, str):
        return open_source(address)
    return Revisions("series", in_order({name: Path(folder) for name, folder in address.items()}, "engine"))


def _path(function: Any) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def _at(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _sent(value: Any) -> Any:
    """A value for JSON; tensors, tasks and the package's dataclasses become mappings with their kind."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return list(map(_sent, value))
    if isinstance(value, Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), value.flatten().tolist()]}
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {"mapping": {name: _sent(one) for name, one in value.items()}}
    if isinstance(value, Task):
        return {"task": to_dict(value)}
    if is_dataclass(value) and type(value).__module__.startswith("induction_memory."):
        return {_path(type(value)): {field.name: _sent(getattr(value, field.name)) for field in fields(value)}}
    raise InputError(f"engine: expected arguments that can be sent to another process, got a {type(value).__name__}")


def _received(value: Any) -> Any:
    """The inverse of `_sent`; tuples have become lists."""
    if isinstance(value, list):
        return list(map(_received, value))
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "tensor":
            dtype, shape, numbers = content
            return torch.tensor(numbers, dtype=getattr(torch, dtype)).reshape(shape)
        case "mapping":
            return {name: _received(one) for name, one in content.items()}
        case "task":
            return from_dict(content)
        case _:
            return _at(kind)(**{name: _received(one) for name, one in content.items()})
