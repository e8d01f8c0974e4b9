"""A text as tokens of a vocabulary, and the pairs of tokens or positions that people name.

names of one character each      the text is read character by character
names without white space        words, separated by white space
some name with white space       at each place the longest name that fits ("the", " ", "cat" or " the", " cat")
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from induction_memory.errors import require


def split(text: str, names: Sequence[str]) -> list[str]:
    """The tokens of a text, as the names of the vocabulary are written; what fits no name is a token of its own.

    >>> split("abba", ["a", "b"]), split("the cat", ["cat", "the"]), split("the cat", ["cat", "the", " "])
    (['a', 'b', 'b', 'a'], ['the', 'cat'], ['the', ' ', 'cat'])
    """
    if all(len(name) == 1 for name in names):
        return list(text)
    if separator(names):
        return text.split()
    tokens, longest = [], sorted(filter(None, names), key=len, reverse=True)
    while text:
        token = next((name for name in longest if text.startswith(name)), text[0])
        tokens.append(token)
        text = text[len(token) :]
    return tokens


def separator(names: Sequence[str]) -> str:
    """What stands between two tokens of a text: a space between words, nothing between others."""
    words = any(len(name) != 1 for name in names) and not any(map(str.isspace, "".join(names)))
    return " " if words else ""


def encode(text: str | Sequence[str], names: Sequence[str], field: str = "text") -> Int[np.ndarray, " pos"]:
    """The numbers of a text's tokens, or of tokens given one by one; `field` is named when one is unknown.

    >>> encode("the cat", ["cat", "the"]).tolist(), encode(["cat"], ["cat", "the"]).tolist()
    ([1, 0], [0])
    """
    tokens = split(text, names) if isinstance(text, str) else list(text)
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [token for token in tokens if token not in numbers]
    shown = "".join(names) if all(len(name) == 1 for name in names) else tuple(names)
    require(not unknown, field, f"tokens of the vocabulary {shown!r}", repr(unknown[0]) if unknown else "")
    return np.array([numbers[token] for token in tokens], dtype=np.int64)


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
