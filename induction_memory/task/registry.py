"""Tasks by name. On the disk a task is its name and its settings; no code is stored, and none is imported by name.

The settings are what `to_dict()` returns, or the fields of a dataclass that has no such method. In a file they stand
beside the key `name`. A file without that key holds the in-context bigram task, which is still written without it.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

from induction_memory.errors import InputError, require
from induction_memory.task.fields import settings_of, with_settings
from induction_memory.task.protocol import Task

Kind = TypeVar("Kind", bound=type)

UNNAMED = "bigrams"
"""The task of a file without a name."""

SHIPPED = {
    "bigrams": "induction_memory.task.bigrams",
    "noisy-triggers": "induction_memory.task.noisy.task",
    "markov": "induction_memory.task.markov.task",
    "causal-graph": "induction_memory.task.causal.task",
    "factual-recall": "induction_memory.task.recall.task",
    "copying": "induction_memory.task.copying.task",
}
"""Name of a shipped task -> the module that registers it when imported."""

_registered: dict[str, type] = {}


def register(kind: Kind) -> Kind:
    """Decorator that registers a task class under `kind.name`. A class that is defined again replaces itself.

    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> import torch
    >>> import induction_memory as im
    >>> @im.task.register
    ... @dataclass(frozen=True)
    ... class Echo:
    ...     name: ClassVar[str] = "echo-example"
    ...     main: ClassVar[str] = "position"
    ...     n_inputs: ClassVar[int] = 4
    ...     n_outputs: ClassVar[int] = 4
    ...     length: int = 5
    ...     def sample(self, n, rng):
    ...         tokens = torch.from_numpy(rng.integers(4, size=(n, self.length)))
    ...         everywhere = torch.ones_like(tokens, dtype=torch.bool)
    ...         return im.task.Batch(tokens, tokens, everywhere, {"position": everywhere}, "position")
    >>> im.task.from_dict({"name": "echo-example", "length": 3})
    Echo(length=3)
    """
    name: str = getattr(kind, "name", "")
    require(isinstance(name, str) and name != "", "task.name", "a name in the class", repr(name))
    missing = [member for member in ("sample", "length", "n_inputs", "n_outputs", "main") if not _has(kind, member)]
    require(not missing, f"task {name!r}", "sample, length, n_inputs, n_outputs and main", f"no {', '.join(missing)}")
    stored = hasattr(kind, "__dataclass_fields__") or (hasattr(kind, "to_dict") and hasattr(kind, "from_dict"))
    require(stored, f"task {name!r}", "a dataclass, or to_dict and from_dict", kind.__name__)
    taken = SHIPPED.get(name) not in (None, kind.__module__)
    other = _registered.get(name)
    taken |= other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__)
    require(not taken, "task.name", "a name that no other task has", repr(name))
    _registered[name] = kind
    return kind


def names() -> tuple[str, ...]:
    """Every task that can be named: those that ship, then those registered since."""
    return (*SHIPPED, *(name for name in _registered if name not in SHIPPED))


def task_type(name: str) -> type:
    """The class of that name; only shipped and registered ones are found."""
    if name not in names():
        nearest = get_close_matches(str(name), names(), n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise InputError(
            f"task.name: expected one of {', '.join(names())}, got {name!r} "
            f"({hint}a task of your own is registered with induction_memory.task.register before it is loaded)",
            entry="unregistered-task",
        )
    if name not in _registered:
        import_module(SHIPPED[name])
    return _registered[name]


def to_dict(task: Task) -> dict[str, Any]:
    """The name and settings of a task as plain JSON values.

    >>> import induction_memory as im
    >>> im.task.to_dict(im.task.NoisyTriggers())["noise"]
    0.3
    """
    kind: Any = type(task)
    require(_registered.get(task.name) is kind, "task", "a registered task (induction_memory.task.register)", kind)
    given: Any = task
    settings = given.to_dict() if hasattr(kind, "to_dict") else settings_of(task)
    require("name" not in settings, f"task {task.name!r}", "settings without the key 'name'", "one")
    try:
        settings = json.loads(json.dumps(settings))
    except TypeError as error:
        raise InputError(f"task {task.name!r}: expected settings of plain values, got {error}") from error
    return settings if task.name == UNNAMED else {"name": task.name, **settings}


def from_dict(values: Mapping[str, Any]) -> Any:
    """The inverse of `to_dict`.

    >>> import induction_memory as im
    >>> im.task.from_dict({"name": "copying", "alphabet": 8}).alphabet
    8
    """
    settings = dict(values)
    kind: Any = task_type(settings.pop("name", UNNAMED))
    return kind.from_dict(settings) if hasattr(kind, "from_dict") else with_settings(kind, settings)


def _has(kind: type, member: str) -> bool:
    return hasattr(kind, member) or member in getattr(kind, "__dataclass_fields__", {})
