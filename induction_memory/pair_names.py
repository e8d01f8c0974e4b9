"""Pairs of tokens or positions, written `a->b`: input, then output."""

from collections.abc import Sequence

from induction_memory.errors import require

Names = Sequence[str | int]
"""Tokens, or positions as numbers."""


def named_pair(text: str, inputs: Names, outputs: Names, field: str) -> tuple[int, int | None]:
    """The places of the input and the output that `a->b` names; no output for `a` alone.

    Between positions the input is a key and the output its query. A key after its query is refused.

    >>> named_pair("a->c", "abc", "abc", "erase"), named_pair("b", "abc", "abc", "erase")
    ((0, 2), (1, None))
    """
    before, arrow, after = text.partition("->") if text != "->" else (text, "", "")
    i = _place(inputs, before, field)
    if not arrow:
        return i, None
    j = _place(outputs, after, field)
    key, query = inputs[i], outputs[j]
    if isinstance(key, int) and isinstance(query, int):
        allowed = f"'key->query' with a key that the query can see (up to {query})"
        require(key <= query, field, allowed, repr(text))
    return i, j


def _place(names: Names, text: str, field: str) -> int:
    """The place of a name among tokens or positions."""
    if names and isinstance(names[0], int):
        known = text.strip().isdigit() and int(text) in names
        require(known, field, f"positions {names[0]} to {names[-1]}", repr(text))
        return names.index(int(text))
    readable = text if text in names else _unescaped(text)
    shown = "".join(map(str, names)) if all(len(str(name)) == 1 for name in names) else names
    require(readable in names, field, f"tokens of the vocabulary {shown!r}", repr(text))
    return names.index(readable)


def _unescaped(text: str) -> str:
    """The text with an escape such as \\n read; itself if it has none."""
    try:
        return text.encode("ascii").decode("unicode_escape") if text.startswith("\\") else text
    except UnicodeError:
        return text
