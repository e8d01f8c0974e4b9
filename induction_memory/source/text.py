"""Tokens of texts: how every analysis reads `text=`.

a series, or a model with a tokenizer    by that tokenizer, without special tokens
a run, or a task                         by the names of the task's tokens (task/corpus.py)
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.errors import InputError, require
from induction_memory.model.associations import token_names
from induction_memory.source.sources import Selection
from induction_memory.task.corpus import encode
from induction_memory.task.protocol import Task


def tokens_of(chosen: Selection, text: str | Sequence[str], task: Task | None) -> Int[Tensor, " pos"]:
    """The tokens of a text; with a task, also of a list of token names."""
    good = isinstance(text, str | list | tuple) and len(text) > 0 and all(isinstance(token, str) for token in text)
    require(good, "text", "at least one character", repr(text))
    if task is not None:
        return torch.from_numpy(encode(text, token_names(task)[0], "text"))
    source: Any = chosen.source
    if not hasattr(source, "encode"):
        allowed = "a model with a tokenizer, or the task whose vocabulary the text is in"
        raise InputError(f"task: expected {allowed}, got none")
    require(isinstance(text, str), "text", "a text, for a tokenizer", repr(text))
    return source.encode(text)[0]


def words_of(chosen: Selection, tokens: Int[Tensor, " pos"], task: Task | None) -> list[str]:
    """Tokens as text; their numbers if they have no names."""
    source: Any = chosen.source
    if task is None:
        return source.words(tokens) if hasattr(source, "words") else [str(token) for token in tokens.tolist()]
    names = token_names(task)[0]
    return [names[token] for token in tokens.tolist()]


def words_of_outputs(chosen: Selection) -> list[str]:
    """The outputs as text; their numbers if they have no names."""
    if chosen.task is not None:
        return list(token_names(chosen.task)[1])
    cfg: Any = chosen.at(int(chosen.steps[0])).model.cfg
    return words_of(chosen, torch.arange(cfg.d_vocab_out if cfg.d_vocab_out > 0 else cfg.d_vocab), None)
