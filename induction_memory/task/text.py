"""A text as tokens of a vocabulary: the one definition for corpora, tasks and views.

names of one character each      the text is read character by character
names without white space        words, separated by white space
some name with white space       at each place the longest name that fits ("the", " ", "cat" or " the", " cat")
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from induction_memory.errors import require


def split(text: str, names: Sequence[str]) -> list[str]:
    """The tokens of a text, by the names of the vocabulary; a piece that fits no name is a token of its own.

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
