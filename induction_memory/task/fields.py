"""Checks and plain values of the settings of a task, shared by all tasks.

A task's settings are the fields of a frozen dataclass. On the disk they are JSON: tuples become lists and come back as
tuples.
"""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any, get_args

import numpy as np

from induction_memory.errors import InputError, require

MOST_TOKENS = 2**28
"""Drawn at once: 2 GiB of tokens."""
SUM_TOLERANCE = 1e-6  # how far given probabilities may be from summing to one before they are scaled to it


def require_integer(value: Any, field: str, low: int, high: int | None, what: str = "") -> None:
    """Raise an InputError unless `value` is a whole number between the bounds, both included."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= (value if high is None else high)
    bounds = f"a whole number of {low} or more" if high is None else f"{low} to {high}"
    require(ok, field, f"{bounds} {what}".strip(), repr(value))


def require_draw(n: Any, length: int, rng: Any, field: str = "n") -> None:
    """Raise an InputError unless `n` sequences can be drawn from the generator."""
    most = MOST_TOKENS // (length + 1)
    whole = int(n) if isinstance(n, np.integer) else n
    require_integer(whole, field, 1, most, f"sequences ({MOST_TOKENS:,} tokens in all)")
    require(isinstance(rng, np.random.Generator), "rng", "a numpy.random.Generator, as step_rng gives it", repr(rng))


def require_seed(seed: Any, field: str = "seed") -> None:
    """Raise an InputError unless `seed` is a whole number that every generator takes."""
    require_integer(seed, field, 0, 2**63 - 1)


def require_texts(value: Any, field: str, expected: str) -> list[str]:
    """A list of texts, or an InputError; a single string is not a list."""
    good = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
    require(good, field, expected, repr(value))
    return list(value)


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


def require_probabilities(values: Any, field: str, shape: tuple[int, ...]) -> None:
    """Raise an InputError unless `values` has the shape and its last axis holds probabilities."""
    try:
        p = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{field}: expected numbers of shape {shape} (the vocabulary), got {error}") from error
    require(p.shape == shape, field, f"shape {shape} (the vocabulary)", p.shape)
    bad = p[~(np.isfinite(p) & (p >= 0))]
    require(bad.size == 0, field, "probabilities of 0 or more", bad[0] if bad.size else "")
    sums = np.atleast_1d(p.sum(-1))
    worst = sums[np.abs(sums - 1).argmax()]
    require(bool(abs(worst - 1) <= SUM_TOLERANCE), field, "probabilities that sum to 1", f"a sum of {worst:.6g}")


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
