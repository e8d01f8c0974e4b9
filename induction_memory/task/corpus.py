"""Unigram and bigram tables of a text (Section 3, "Bigram data model").

With c(i) the number of times token i occurs and c(i, j) the number of times j follows i,

    pi_u(i) = c(i) / sum_i' c(i'),        pi_b(j | i) = c(i, j) / sum_j' c(i, j').

Raw counts, unsmoothed. A token without successors (it occurs only at the end of the text) has pi_b( . | i) = pi_u, as
if the text started again.

The counts of tiny Shakespeare ship with the package; the text does not.

One rule splits a text into tokens of a vocabulary, for corpora, tasks and views:

names of one character each      the text is read character by character
names without white space        words, separated by white space
some name with white space       at each place the longest name that fits ("the", " ", "cat" or " the", " cat")
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from operator import index
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Float, Int, Shaped

from induction_memory.errors import InputError, require
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_texts
from induction_memory.task.protocol import read_only


def split(text: str, names: Sequence[str]) -> list[str]:
    """The tokens of a text, by the names of the vocabulary; a piece that fits no name is kept as one token.

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
    """The separator between two tokens of a text: a space between words, otherwise nothing."""
    words = any(len(name) != 1 for name in names) and not any(map(str.isspace, "".join(names)))
    return " " if words else ""


def encode(text: str | Sequence[str], names: Sequence[str], field: str = "text") -> Int[np.ndarray, " pos"]:
    """The ids of a text's tokens, or of a list of tokens; an error about an unknown token names `field`.

    >>> encode("the cat", ["cat", "the"]).tolist(), encode(["cat"], ["cat", "the"]).tolist()
    ([1, 0], [0])
    """
    tokens = split(text, names) if isinstance(text, str) else list(text)
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [token for token in tokens if token not in numbers]
    shown = "".join(names) if all(len(name) == 1 for name in names) else tuple(names)
    require(not unknown, field, f"tokens of the vocabulary {shown!r}", repr(unknown[0]) if unknown else "")
    return np.array([numbers[token] for token in tokens], dtype=np.int64)


SHIPPED = ("tinyshakespeare",)


@field_docs
@dataclass(frozen=True, eq=False)
class Corpus:
    """A vocabulary with its counts; pi_u and pi_b follow from them.

    >>> import numpy as np
    >>> import induction_memory as im
    >>> coin = im.task.Corpus("coin", ("h", "t"), np.array([3, 1]), np.array([[1, 2], [1, 0]]))
    >>> coin.unigram, coin.bigram[0]
    (array([0.75, 0.25]), array([0.33333333, 0.66666667]))
    """

    name: str
    """The name; a saved configuration holds the name alone if the corpus ships with the package."""
    vocabulary: tuple[str, ...]
    """The tokens, in the order of their ids."""
    unigram_counts: Shaped[np.ndarray, " vocab"]
    """How often each token occurs (any non-negative weights will do)."""
    bigram_counts: Shaped[np.ndarray, "vocab vocab"]
    """How often the column's token follows the row's."""

    def __post_init__(self) -> None:
        n = len(self.vocabulary)
        require(n > 0, "corpus.vocabulary", "at least one token", "none")
        require_texts(self.vocabulary, "corpus.vocabulary", "strings")
        if len(set(self.vocabulary)) < n:
            repeated = sorted(token for token in set(self.vocabulary) if self.vocabulary.count(token) > 1)
            raise InputError(f"corpus.vocabulary: expected each token once, got {repeated[:1]} twice")
        for field, shape in (("unigram_counts", (n,)), ("bigram_counts", (n, n))):
            counts = np.array(getattr(self, field))  # a copy that the caller cannot change
            where = f"corpus.{field}"
            require(counts.shape == shape, where, f"shape {shape} (the vocabulary)", counts.shape)
            require(counts.dtype.kind in "iuf", where, "numbers", counts.dtype)
            lowest = counts.min()
            require(bool(np.isfinite(counts).all() and lowest >= 0), where, "finite counts of 0 or more", lowest)
            counts = counts.astype(np.float64 if counts.dtype.kind == "f" else np.int64)
            object.__setattr__(self, field, read_only(counts))
        require(bool(self.unigram_counts.sum() > 0), "corpus.unigram_counts", "a positive sum", 0)

    @classmethod
    def from_tokens(cls, tokens: Iterable[str], name: str = "tokens") -> "Corpus":
        """Count any sequence of tokens. The vocabulary is sorted (single characters: by code point)."""
        text = list(tokens)
        require(len(text) > 0, "corpus", "a text of at least one token", "an empty one")
        require_texts(text, "corpus", "tokens that are strings")
        vocabulary = tuple(sorted(set(text)))
        n = len(vocabulary)
        number = {token: i for i, token in enumerate(vocabulary)}
        ids = np.array([number[token] for token in text])
        unigram = np.bincount(ids, minlength=n)
        bigram = np.bincount(ids[:-1] * n + ids[1:], minlength=n * n).reshape(n, n)
        return cls(name, vocabulary, unigram, bigram)

    @classmethod
    def from_text(cls, text: str, name: str = "text") -> "Corpus":
        """Count the characters of a text.

        >>> corpus = Corpus.from_text("abab")
        >>> corpus.vocabulary, corpus.unigram_counts.tolist(), corpus.bigram_counts.tolist()
        (('a', 'b'), [2, 2], [[0, 2], [1, 0]])
        """
        return cls.from_tokens(text, name)

    @cached_property
    def unigram(self) -> Float[np.ndarray, " vocab"]:
        """pi_u."""
        return read_only(self.unigram_counts / self.unigram_counts.sum())

    @cached_property
    def bigram(self) -> Float[np.ndarray, "vocab vocab"]:
        """pi_b, row = current token, column = next; pi_u in the row of a token without successors."""
        totals = self.bigram_counts.sum(axis=1, keepdims=True)
        rows = self.bigram_counts / np.where(totals > 0, totals, 1)
        return read_only(np.where(totals > 0, rows, self.unigram))

    @property
    def size(self) -> int:
        """N, the number of tokens in the vocabulary."""
        return len(self.vocabulary)

    def encode(self, text: str | Iterable[str], field: str = "text") -> Int[np.ndarray, " pos"]:
        """Token ids of a text, or of a list of tokens; an error about an unknown token names `field`."""
        return encode(text if isinstance(text, str) else list(text), self.vocabulary, field)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of a sequence of token ids, the inverse of `encode`."""
        numbers = [index(i) for i in ids]
        for i in numbers:
            require(0 <= i < self.size, "ids", f"0 to {self.size - 1} (the vocabulary)", i)
        return separator(self.vocabulary).join(self.vocabulary[i] for i in numbers)

    def to_dict(self) -> dict[str, Any]:
        """Name, vocabulary and counts as plain lists."""
        return {
            "name": self.name,
            "vocabulary": list(self.vocabulary),
            "unigram_counts": self.unigram_counts.tolist(),
            "bigram_counts": self.bigram_counts.tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Corpus":
        """The inverse of `to_dict`."""
        keys = {"name", "vocabulary", "unigram_counts", "bigram_counts"}
        require(set(values) == keys, "corpus", f"exactly the keys {sorted(keys)}", sorted(values))
        return cls(
            values["name"],
            tuple(values["vocabulary"]),
            np.array(values["unigram_counts"]),
            np.array(values["bigram_counts"]),
        )

    @cached_property
    def _identity(self) -> tuple[str, tuple[str, ...], bytes, bytes]:
        return self.name, self.vocabulary, self.unigram_counts.tobytes(), self.bigram_counts.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Corpus) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


def load_corpus(corpus: str | Path, field: str = "corpus") -> Corpus:
    """A shipped corpus by its name, or the characters of a UTF-8 text file by its path.

    >>> import induction_memory as im
    >>> im.task.load_corpus("tinyshakespeare").vocabulary[-3:]
    ('x', 'y', 'z')
    """
    if corpus in SHIPPED:
        stored = resources.files("induction_memory.task").joinpath("data", f"{corpus}.json")
        return Corpus.from_dict(json.loads(stored.read_text(encoding="utf-8")))
    allowed = f"{' or '.join(map(repr, SHIPPED))} or the path of a text file"
    require(isinstance(corpus, str | Path), field, allowed, repr(corpus))
    path = Path(corpus)
    require(path.is_file(), field, allowed, repr(str(corpus)))
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(
            f"{field}: expected a file that can be read, got {str(corpus)!r} ({error.strerror})"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{field}: expected UTF-8 text, got {str(corpus)!r} ({error.reason})") from error
    require(text != "", field, "a text of at least one character", f"the empty file {str(corpus)!r}")
    return Corpus.from_text(text, name=path.stem)
