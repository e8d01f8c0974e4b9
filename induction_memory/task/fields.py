"""Checks and plain values of the settings of a task, shared by all tasks.

A task's settings are the fields of a frozen dataclass. On the disk they are JSON: tuples become lists and come back as
tuples.
"""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from induction_memory.errors import require


def require_integer(value: Any, field: str, low: int, high: int | None, what: str = "") -> None:
    """Raise an InputError unless `value` is a whole number between the bounds, both included."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= (value if high is None else high)
    bounds = f"a whole number of {low} or more" if high is None else f"{low} to {high}"
    require(ok, field, f"{bounds} {what}".strip(), repr(value))


def require_number(value: Any, field: str, low: int | float, high: int | float, *, open_low: bool = False) -> None:
    """Raise an InputError unless `value` is a number between the bounds; the lower one is left out if `open_low`."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    ok = ok and (low < value if open_low else low <= value) and value <= high
    begins = f"above {low:g}" if open_low else f"of {low:g} or more"
    ends = "" if high == float("inf") else f", at most {high:g}"
    require(ok and math.isfinite(value), field, f"a number {begins}{ends}", repr(value))


def require_choice(value: Any, field: str, choices: Any, otherwise: str = "") -> None:
    """Raise an InputError unless `value` is one of the strings of the Literal `choices`."""
    names = [*map(repr, get_args(choices)), *([otherwise] if otherwise else [])]
    require(value in get_args(choices), field, f"{', '.join(names[:-1])} or {names[-1]}", repr(value))


def as_tuple(value: Any, field: str) -> tuple:
    """A sequence, or a sequence of sequences, as tuples."""
    require(isinstance(value, Iterable), field, "a sequence", repr(value))
    plain = value.tolist() if isinstance(value, np.ndarray) else value
    return tuple(tuple(row) if isinstance(row, Iterable) and not isinstance(row, str) else row for row in plain)


def as_list(value: Any) -> Any:
    """Tuples, at any depth, as lists."""
    return [as_list(item) for item in value] if isinstance(value, tuple) else value


def read_only(array: np.ndarray) -> np.ndarray:
    """The array itself, closed to writing: a table of a frozen task."""
    array.setflags(write=False)
    return array


def settings_of(task: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain values."""
    return {field.name: as_list(getattr(task, field.name)) for field in fields(task)}


def with_settings(kind: Any, values: dict[str, Any]) -> Any:
    """The inverse of `settings_of`: a dataclass made from plain values; an unknown key is refused."""
    known = [field.name for field in fields(kind)]
    for key, value in values.items():
        require(key in known, f"task.{key}", f"one of {', '.join(known)}", repr(value))
    return kind(**{key: as_tuple(value, key) if isinstance(value, list) else value for key, value in values.items()})
