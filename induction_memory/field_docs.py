"""The strings under the fields of a class, shown by `help()`.

Python does not keep the string under a field. `field_docs` adds these strings to the class's docstring, so
`help(im.experiment.TrainConfig)` explains every field. The source is read on first use of the docstring, not when the
class is made.
"""

import ast
import sys
from functools import lru_cache
from inspect import cleandoc
from typing import TypeVar

Class = TypeVar("Class", bound=type)


class Docstring:
    """A class's docstring with the meaning of its fields, put together on first use."""

    def __init__(self, cls: type) -> None:
        self.cls, self.own, self.whole = cls, cls.__doc__, None

    def __get__(self, instance: object, owner: type | None = None) -> str | None:
        if self.whole is None:
            lines = [f"    {name}: {meaning}" for name, meaning in field_meanings(self.cls).items()]
            self.whole = "\n".join([cleandoc(self.own or ""), "", "Fields:", *lines]) if lines else self.own
        return self.whole


def field_docs(cls: Class) -> Class:
    """Class decorator: list what each field means in the class's docstring."""
    cls.__doc__ = Docstring(cls)  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def field_meanings(cls: type) -> dict[str, str]:
    """The strings under the fields of a class, its base classes first; empty where there is no source.

    >>> from induction_memory.experiment.train_config import TrainConfig
    >>> field_meanings(TrainConfig)["batch_size"]
    'Fresh sequences per update.'
    """
    meanings = {}
    for base in reversed(cls.__mro__):
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        if file is not None and base.__module__.partition(".")[0] == __name__.partition(".")[0]:
            meanings |= _classes(file).get(base.__name__, {})
    return meanings


@lru_cache
def _classes(file: str) -> dict[str, dict[str, str]]:
    try:
        with open(file, encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError):
        return {}
    return {node.name: _fields(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> dict[str, str]:
    meanings = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            text = following.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                meanings[ast.unparse(statement.target)] = " ".join(text.value.split())
    return meanings
