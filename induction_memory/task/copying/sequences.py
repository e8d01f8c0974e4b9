"""Sequences that ask for a copy, and what their readers would say (model in `task.py`; positions count from 0).

The second trigger stands at P = l_1 + l_2 + 2 and the output at l_1 + 1. In training both spans are l, so that the
output stands at P / 2: `shortcut` copies that token, wherever the first trigger is. `induction` copies what followed
the first trigger. Where there is nothing to copy, both say that all outputs are equally likely.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.batch import Batch
from induction_memory.task.fields import require_draw
from induction_memory.task.pairs import Pairs, at, last_of
from induction_memory.task.positions import after_same_context, one_key, previous
from induction_memory.task.protocol import Predictor


def sample(task: Any, n: int, rng: np.random.Generator) -> Batch:
    """Draw `n` sequences; what follows the second trigger is its output and then more of the alphabet."""
    require_draw(n, task.length, rng)
    T, here = task.length, np.arange(n)
    span = np.array(task.spans)[rng.integers(len(task.spans), size=n)]
    first = span
    if task.placement == "elsewhere":
        first = rng.integers(2 * span)  # 0 .. 2l without l, by stepping over it
        first = first + (first >= span)
    second = 2 * span + 2
    if task.placement == "any":
        second = span + np.array(task.spans)[rng.integers(len(task.spans), size=n)] + 2
    tokens = rng.integers(task.alphabet, size=(n, T + 1))
    tokens[here, first] = tokens[here, second] = task.trigger
    tokens[here, second + 1] = output = tokens[here, first + 1]
    asked = torch.arange(T) == torch.from_numpy(second)[:, None]
    return Batch(
        torch.from_numpy(np.ascontiguousarray(tokens[:, :-1])),
        torch.where(asked, torch.from_numpy(output)[:, None], 0),
        counted=asked,
        groups={"query": asked},
        main=task.main,
        latents={"first": torch.from_numpy(first), "output": torch.from_numpy(output)},
    )


def predictors(task: Any) -> dict[str, Predictor]:
    """Candidate predictors, from the one that knows least to the Bayes-optimal one."""
    return {
        "uniform": lambda tokens: _copied(task, tokens, torch.full_like(tokens, -1)),
        "shortcut": lambda tokens: _copied(task, tokens, middle(task, tokens)),
        "induction": lambda tokens: _copied(task, tokens, after_first(task, tokens)),
    }


def middle(task: Any, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """P / 2 at a trigger that is not the first and at an even place; -1 elsewhere."""
    here = torch.arange(tokens.shape[1], device=tokens.device)
    asked = (after_first(task, tokens) >= 0) & (here % 2 == 0)
    return torch.where(asked, here // 2, -1)


def after_first(task: Any, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """At a trigger that is not the first, the place after the first; -1 elsewhere."""
    is_trigger = tokens == task.trigger
    again = is_trigger & (is_trigger.cumsum(1) >= 2)
    return torch.where(again, is_trigger.int().argmax(1, keepdim=True) + 1, -1)


def _copied(
    task: Any, tokens: Int[Tensor, "batch pos"], place: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos output"]:
    """Probability one for the token at that place; uniform where there is no place, or a trigger stands there."""
    bad = tokens[(tokens < 0) | (tokens >= task.n_inputs)]
    require(len(bad) == 0, "tokens", f"ids of 0 to {task.n_inputs - 1} (the vocabulary)", bad[:1].tolist())
    found = tokens.gather(1, place.clamp(min=0))
    known = (place >= 0) & (found < task.n_outputs)
    copy = torch.nn.functional.one_hot(torch.where(known, found, 0), task.n_outputs).to(torch.float64)
    return torch.where(known.unsqueeze(-1), copy, 1 / task.n_outputs)


def sources(task: Any, batch: Batch) -> dict[str, Bool[Tensor, "batch query key"]]:
    """Keys by role."""
    tokens, pos = batch.tokens, batch.tokens.shape[1]
    asked = batch.group("query")[:, :, None]
    return {
        "previous": previous(tokens),
        "induction": after_same_context(tokens) & asked,
        "shortcut": one_key(middle(task, tokens), pos) & asked,
    }


def corrupted(task: Any, kind: Literal["output", "trigger"], batch: Batch, rng: np.random.Generator) -> Pairs:
    """Another token of the alphabet in the place of the output, or of the first trigger."""
    n, query = len(batch), last_of(batch.group("query"))
    answer, first = at(batch.targets, query), batch.latents["first"]
    other = (answer + torch.from_numpy(rng.integers(1, task.alphabet, size=n))) % task.alphabet
    tokens = batch.tokens.clone()
    tokens[torch.arange(n), first + (kind == "output")] = other
    changed = replace(batch, tokens=tokens)
    return Pairs(batch, changed, query, answer, other, {"trigger": first, "output": first + 1})
