"""What an edit of a memory asks for, checked by names and sizes alone: no model is loaded, no tensor is made."""

from collections.abc import Mapping
from typing import Any

from induction_memory.errors import require
from induction_memory.model.head_names import head_names
from induction_memory.task.fields import require_number

EDITS = ("erase", "insert", "swap", "project", "truncate", "transplant")
MOST_STRENGTH = 1e30
"""The largest score that may be set: larger ones overflow in the model."""
MEMORY_LAYERS = 2
"""Layers of a model whose memories have the paper's names."""
Head = int | str


def one_edit(edit: Mapping[str, Any], strength: float | None = None) -> tuple[str, Any]:
    """The name and the value of the one edit that is given; only an insertion has a strength.

    >>> one_edit({"erase": "e", "swap": None, "project": False})
    ('erase', 'e')
    """
    given = [name for name, value in edit.items() if value is not None and value is not False]
    require(len(given) == 1 and given[0] in EDITS, "edit", f"one of {', '.join(EDITS)}", ", ".join(given) or "none")
    name = given[0]
    if strength is not None:
        require(name == "insert", "strength", f"none: {name} needs no strength", repr(strength))
        require_number(strength, "strength", -MOST_STRENGTH, MOST_STRENGTH)
    return name, edit[name]


def edited_heads(
    memory: str, n_layers: int, n_heads: int, *, head: Head | None = None, through: Head | None = None
) -> tuple[str | None, str | None]:
    """The names of the head to edit and of the head that W_K2 reads through; None where none was given.

    >>> edited_heads("W_K2", 2, 4, head="L2H1", through=3)
    ('L2H1', 'L1H3')
    """
    require(n_layers == MEMORY_LAYERS, "memory", "a model with two layers", f"one with {n_layers}")
    require(through is None or memory == "W_K2", "through", "none: only W_K2 reads through a head", repr(through))
    layer = 1 if memory == "W_K1" else 2
    one = None if head is None else _named(head, layer, n_heads, "head")
    return one, None if through is None else _named(through, 1, n_heads, "through")


def exchanged(text: str) -> tuple[str, str]:
    """The two names of a swap, `a->b`."""
    first, arrow, second = text.partition("->")
    require(bool(arrow), "swap", "two names, 'a->b'", repr(text))
    return first, second


def _named(head: Head, layer: int, n_heads: int, field: str) -> str:
    """The name of a head given by its name or its number in the layer, from 1."""
    names = head_names((layer,), n_heads)
    known = head in names or (isinstance(head, int) and 1 <= head <= n_heads)
    require(known, field, f"a head of layer {layer}: {', '.join(names)} or 1 to {n_heads}", repr(head))
    return head if isinstance(head, str) else names[head - 1]
