"""Cheaper type checks: the axes of arrays are matched only in functions whose signatures name some.

To match axes, jaxtyping's decorator binds the arguments of each call and checks them twice. A function without arrays
gets beartype alone, which checks the same arguments and the same result.
"""

import functools
import inspect
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import beartype

MATCHED = jaxtyping.jaxtyped


def names_axes(hint: Any) -> bool:
    """Whether an annotation holds an array of jaxtyping's, at any depth."""
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    parts = hint if isinstance(hint, list | tuple) else get_args(hint)  # a list: the arguments of a Callable
    return any(names_axes(part) for part in parts)


def is_plain(function: Any) -> bool:
    """Whether all annotations are known now, and none of them names an axis."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # a class that is defined further down: jaxtyping decides
        return False
    return not any(names_axes(hint) for hint in hints.values())


def jaxtyped(value: Any = None, *, typechecker: Any = None) -> Any:
    """In place of `jaxtyping.jaxtyped`."""
    if value is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if not inspect.isfunction(value) or not is_plain(value):
        return MATCHED(value, typechecker=typechecker)
    checked = beartype(value)

    @functools.wraps(value)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (value if jaxtyping.config.jaxtyping_disable else checked)(*args, **kwargs)

    return call


jaxtyping.jaxtyped = jaxtyped
