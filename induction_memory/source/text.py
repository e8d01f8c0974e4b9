"""Texts and tokens of a subject: how every analysis reads `text=`.

a series, or a model with a tokenizer    by that tokenizer, without special tokens
a run, or a task that was given          by the names of the task's tokens (task/corpus.py)
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.model.associations import token_names
from induction_memory.source.sources import Subject
from induction_memory.task.corpus import encode
from induction_memory.task.protocol import Task


def has_tokenizer(subject: Subject) -> bool:
    """Whether a series or a model has a tokenizer, so that it can read a text without a task."""
    return subject.series is not None or _tokenizer(subject) is not None


def tokens_of(subject: Subject, text: str | Sequence[str], task: Task | None) -> Int[Tensor, " pos"]:
    """The tokens of a text; with a task, also of a list of token names."""
    good = isinstance(text, str | list | tuple) and len(text) > 0 and all(isinstance(token, str) for token in text)
    require(good, "text", "at least one character", repr(text))
    if task is not None:
        return torch.from_numpy(encode(text, token_names(task)[0], "text"))
    if not has_tokenizer(subject):
        allowed = "a model with a tokenizer, or the task whose vocabulary the text is in"
        raise InputError(f"task: expected {allowed}, got none")
    require(isinstance(text, str), "text", "a text, for a tokenizer", repr(text))
    if subject.series is not None:
        return subject.series.encode(str(text))[0]
    tokens = torch.tensor(_tokenizer(subject)(text, add_special_tokens=False)["input_ids"], dtype=torch.long)
    require(len(tokens) > 0, "text", "at least one token", repr(text))
    return tokens


def words_of(subject: Subject, tokens: Int[Tensor, " pos"], task: Task | None) -> list[str]:
    """Tokens as text; their numbers if they have no names."""
    if task is not None:
        names = token_names(task)[0]
        return [names[token] for token in tokens.tolist()]
    if subject.series is not None:
        return subject.series.words(tokens)
    tokenizer = _tokenizer(subject)
    return [str(token) if tokenizer is None else tokenizer.decode([token]) for token in tokens.tolist()]


def _tokenizer(subject: Subject) -> Any:
    """The tokenizer of a model, or None."""
    return getattr(subject.source, "tokenizer", None) if isinstance(subject.source, nn.Module) else None
