"""Sequences of the Markov chains, all of a batch at once (model in `task.py`).

A context z_{t-n+1}..z_t has the number sum_i z_{t-i} S^i: the current symbol is its lowest digit.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from induction_memory.task.batch import Batch
from induction_memory.task.fields import require_draw
from induction_memory.task.pairs import Pairs
from induction_memory.task.positions import after_same_context


def sample(task: Any, n: int, rng: np.random.Generator) -> Batch:
    """Draw `n` sequences of T + 1 symbols: inputs z_1..z_T, targets z_2..z_{T+1} or their distributions."""
    require_draw(n, task.length, rng)
    S, order, T = task.symbols, task.order, task.length
    if task.chains is None:
        chosen = np.full(n, -1)
        rows = rng.dirichlet(np.full(S, task.alpha), size=(n, task.contexts))
    else:
        chosen = rng.integers(len(task.chains), size=n)
        rows = task.chains[chosen]
    thresholds = rows.cumsum(-1)[..., :-1]
    tokens = np.empty((n, T + 1), dtype=np.int64)
    tokens[:, :order] = rng.integers(S, size=(n, order))
    uniform = rng.random((n, T + 1 - order))
    here, powers = np.arange(n), S ** np.arange(order)
    next_row = np.full((n, T, S), 1 / S)
    for t in range(order - 1, T):
        context = tokens[:, t - order + 1 : t + 1][:, ::-1] @ powers
        tokens[:, t + 1] = (uniform[:, t + 1 - order, None] >= thresholds[here, context]).sum(-1)
        next_row[:, t] = rows[here, context]
    complete = torch.arange(T).expand(n, -1) >= order - 1
    inputs = torch.from_numpy(np.ascontiguousarray(tokens[:, :-1]))
    hard = torch.from_numpy(np.ascontiguousarray(tokens[:, 1:]))
    return Batch(
        inputs,
        torch.from_numpy(next_row).float() if task.soft_targets else hard,
        counted=torch.ones_like(complete),
        groups={"chain": complete, "start": ~complete},
        main=task.main,
        latents={"rows": torch.from_numpy(rows), "chain": torch.from_numpy(chosen), "next": hard},
    )


def other_successors(task: Any, batch: Batch, rng: np.random.Generator) -> Pairs:
    """Another symbol after every earlier occurrence of the query's context, the same shift for a whole sequence.

    The query is the last position. No single symbol is right there: measure the change in KL.
    """
    n, T = batch.tokens.shape
    query = torch.full((n,), T - 1)
    changed = after_same_context(batch.tokens, task.order)[:, -1].clone()
    changed[:, T - task.order :] = False  # the query's own context stays
    shift = torch.from_numpy(rng.integers(1, task.symbols, size=n))
    shifted: Tensor = (batch.tokens + shift[:, None]) % task.symbols
    corrupted = replace(batch, tokens=torch.where(changed, shifted, batch.tokens))
    return Pairs(batch, corrupted, query, None, None)
