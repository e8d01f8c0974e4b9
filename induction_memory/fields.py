"""Fields of frozen dataclasses: checked by their annotations, written as plain values, and read from texts.

`check_fields(self, "train", steps=(0, 100, "updates"))` in `__post_init__` refuses a value that is not of the annotated
type, or a number outside its bounds, in one line that names the field. Lists become tuples and whole numbers in real
fields become floats, so that Python, JSON and the command line make the same configuration.
"""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from induction_memory.errors import InputError, nearest, require, require_known

Config = TypeVar("Config")

MOST_REAL = 1e38
"""The largest real number allowed in any field: weights and gradients are 32-bit floats."""


def check_fields(config: Any, part: str, **bounds: tuple[Any, ...]) -> None:
    """Convert every field of a dataclass to its annotated type; `bounds` holds (least, most, what) for numbers."""
    for field in fields(config):
        value, limits = getattr(config, field.name), bounds.get(field.name, ())
        try:
            typed = as_kind(value, field.type)
            good = not limits or typed is None or limits[0] <= typed <= (limits[1] or math.inf)
        except TypeError:
            typed, good = value, False
        if not good:
            allowed = expected(field.type, *limits)
            near = nearest(value, words_of(field.type)) if isinstance(value, str) else ""
            raise InputError(f"{part}.{field.name}: expected {allowed}, got {repr(value)[:80]}{near}")
        object.__setattr__(config, field.name, typed)


def as_kind(value: Any, kind: Any) -> Any:
    """The value as one of the annotated type; a TypeError if it cannot be one.

    >>> as_kind([1, 2], tuple[float, ...]), as_kind("b", Literal["a", "b"] | None)
    ((1.0, 2.0), 'b')
    """
    inner = get_args(kind)
    match get_origin(kind):
        case None if kind is float:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and abs(value) <= MOST_REAL:  # nan is not
                return float(value)
        case None:
            if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
                return value
        case origin if origin is Literal:
            if isinstance(value, str) and value in inner:
                return value
        case origin if origin in (Union, UnionType):
            for one in inner:
                try:
                    return as_kind(value, one)
                except TypeError:
                    continue
        case origin if origin is tuple and isinstance(value, Iterable) and not isinstance(value, str):
            items = value.tolist() if isinstance(value, np.ndarray) else list(value)
            kinds = inner[:1] * len(items) if inner[-1] is Ellipsis else inner
            if len(items) == len(kinds):
                return tuple(map(as_kind, items, kinds))
    raise TypeError(value)


def expected(kind: Any, least: Any = None, most: Any = None, what: str = "") -> str:
    """What values a field of this type takes, in words.

    >>> expected(Literal["a", "b"] | None), expected(int, 1, 9, "heads")
    ("'a', 'b' or none", '1 to 9 heads')
    """
    words: list[str] = []
    for one in get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,):
        if get_origin(one) is Literal:
            words += map(repr, get_args(one))
        elif get_origin(one) is tuple:
            words.append("a list")
        elif one in (int, float) and least is not None:
            words.append(within(least, most, what, whole=one is int))
        else:
            plain = {NoneType: "none", bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
            words.append(plain.get(one, getattr(one, "__name__", "")))
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} or {last}" if first else last


def words_of(kind: Any) -> tuple[str, ...]:
    """The words that the annotated type lists, at any depth."""
    inner = get_args(kind)
    return inner if get_origin(kind) is Literal else tuple(word for one in inner for word in words_of(one))


def within(least: Any, most: Any, what: str = "", *, whole: bool = True) -> str:
    """A range of numbers in words; no upper bound if `most` is None."""
    if whole:
        return (f"a whole number of {least} or more" if most is None else f"{least} to {most}") + f" {what}".rstrip()
    return f"a number of {least:g} or more" + ("" if most is None else f", at most {most:g}")


def parsed(text: str, kind: Any, field: str) -> Any:
    """A text from the command line as a value of the annotated type.

    A list is JSON, or its items between commas.

    >>> parsed("none", int | None, "n"), parsed("0.5, 1", tuple[float, float], "betas")
    (None, (0.5, 1.0))
    """
    items = [item.strip() for item in text.split(",")] if text else []
    readings = [_constant(text), text, [_constant(item) for item in items], items]
    if text.startswith("["):
        with suppress(ValueError, RecursionError):
            readings.insert(0, json.loads(text))
    for value in readings:
        try:
            return as_kind(value, kind)
        except TypeError:
            continue
    raise InputError(f"{field}: expected {expected(kind)}, got {text[:80]!r}{nearest(text, words_of(kind))}")


def _constant(text: str) -> Any:
    """None, true or false, or a number; the text itself if it is none of these."""
    named = {"none": None, "null": None, "": None, "true": True, "false": False}
    if text.lower() in named:
        return named[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def as_plain(config: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them: tuples, at any depth, as lists."""
    return {field.name: _retyped(getattr(config, field.name), tuple, list) for field in fields(config)}


def from_plain(kind: type[Config], values: Mapping[str, Any], part: str) -> Config:
    """The inverse of `as_plain`; a key that is not a field is refused."""
    known = [field.name for field in fields(kind)]  # pyright: ignore[reportArgumentType]
    settings = {}
    for key, value in values.items():
        require_known(key, known, f"{part}.{key}")
        settings[key] = _retyped(value, list, tuple)
    return kind(**settings)


def _retyped(value: Any, old: type, new: type) -> Any:
    return new(_retyped(item, old, new) for item in value) if isinstance(value, old) else value


def require_integer(value: Any, field: str, low: int, high: int | None, what: str = "") -> None:
    """Raise an InputError unless `value` is a whole number between the bounds, both included."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= (value if high is None else high)
    if not ok:
        raise InputError(f"{field}: expected {within(low, high, what)}, got {value!r}")


def require_seed(seed: Any, field: str = "seed") -> None:
    """Raise an InputError unless `seed` is a whole number that every random generator accepts."""
    require_integer(seed, field, 0, 2**63 - 1)


def require_number(value: Any, field: str, low: int | float, high: int | float, *, open_low: bool = False) -> None:
    """Raise an InputError unless `value` is a number between the bounds; `open_low` excludes the lower bound."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    ok = ok and (low < value if open_low else low <= value) and value <= high
    begins = f"above {low:g}" if open_low else f"of {low:g} or more"
    require(ok, field, f"a number {begins}, at most {high:g}", repr(value))


def require_texts(value: Any, field: str, expected: str) -> list[str]:
    """A list of texts, or an InputError; a single string is not a list."""
    good = isinstance(value, list | tuple) and set(map(type, value)) <= {str}
    require(good, field, expected, repr(value))
    return list(value)
