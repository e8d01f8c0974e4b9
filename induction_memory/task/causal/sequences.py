"""Sequences over a causal graph and what their readers would predict (model in `task.py`).

A reader who takes q(i) for the parent of i counts what the children of the query's symbol were,

    p(y = j | z_1..z_t) = (N_t(z_t, j) + alpha) / (N_t(z_t) + S alpha),
    N_t(s, j) = number of i <= t with z_{q(i)} = s and z_i = j.

With q = p this is the exact posterior mean of pi(j | z_t); with q(i) = i - 1 it is the reader of a chain.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.batch import Batch
from induction_memory.task.fields import require_draw
from induction_memory.task.pairs import Pairs, at
from induction_memory.task.positions import one_key
from induction_memory.task.protocol import Predictor


def sample(task: Any, n: int, rng: np.random.Generator) -> Batch:
    """Draw `n` sequences of T symbols, and a target for each position that is asked."""
    require_draw(n, task.length, rng)
    S, T = task.symbols, task.length
    rows = rng.dirichlet(np.full(S, task.alpha), size=(n, S))
    thresholds = rows.cumsum(-1)[..., :-1]
    roots = rng.integers(S, size=(n, T))
    uniform = rng.random((n, T))
    tokens, here = np.empty((n, T), dtype=np.int64), np.arange(n)
    for i, parent in enumerate(task.parents):
        child = (uniform[:, i, None] >= thresholds[here, tokens[:, parent]]).sum(-1) if parent >= 0 else roots[:, i]
        tokens[:, i] = child
    targets = (rng.random((n, T, 1)) >= thresholds[here[:, None], tokens]).sum(-1)
    asked = torch.ones(n, T, dtype=torch.bool)
    if task.asked == "last":
        asked[:, :-1] = False
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
        counted=asked,
        groups={"query": asked},
        main=task.main,
        latents={"rows": torch.from_numpy(rows)},
    )


def predictors(task: Any) -> dict[str, Predictor]:
    """Candidate predictors, the one that knows least first. A unigram predictor would be worse than the uniform one."""
    parents = torch.from_numpy(np.array(task.parents))
    chain = torch.arange(task.length) - 1
    S, alpha = task.symbols, task.alpha
    return {
        "uniform": lambda tokens: torch.full((*tokens.shape, S), 1 / S, dtype=torch.float64),
        "chain": partial(along, parents=chain, symbols=S, alpha=alpha),
        "bayes": partial(along, parents=parents, symbols=S, alpha=alpha),
    }


def along(
    tokens: Int[Tensor, "batch pos"], parents: Int[Tensor, " longest"], symbols: int, alpha: float
) -> Float[Tensor, "batch pos symbol"]:
    """Probabilities of a child of the current position, for a reader who assumes these parents."""
    bad = tokens[(tokens < 0) | (tokens >= symbols)]
    require(len(bad) == 0, "tokens", f"ids of 0 to {symbols - 1} (the vocabulary)", bad[:1].tolist())
    require(tokens.shape[1] <= len(parents), "tokens", f"at most {len(parents)} positions", tokens.shape[1])
    symbol = torch.nn.functional.one_hot(tokens, symbols).to(torch.float64)
    counts = children(tokens, parents).to(torch.float64) @ symbol
    return (counts + alpha) / (counts.sum(-1, keepdim=True) + symbols * alpha)


def children(tokens: Int[Tensor, "batch pos"], parents: Int[Tensor, " longest"]) -> Bool[Tensor, "batch query key"]:
    """Keys up to the query whose parent has the query's symbol."""
    pos = tokens.shape[1]
    parents = parents[:pos].to(tokens.device)
    of_parent = torch.where(parents >= 0, tokens[:, parents.clamp(min=0)], -1)
    here = torch.arange(pos, device=tokens.device)
    return (tokens[:, :, None] == of_parent[:, None, :]) & (here[None, :] <= here[:, None])


def sources(task: Any, batch: Batch) -> dict[str, Bool[Tensor, "batch query key"]]:
    """Keys by role."""
    parents = torch.from_numpy(np.array(task.parents))[: batch.tokens.shape[1]]
    return {
        "parent": one_key(parents.expand_as(batch.tokens), batch.tokens.shape[1]),
        "induction": children(batch.tokens, parents),
    }


def other_children(task: Any, batch: Batch, rng: np.random.Generator) -> Pairs:
    """Another symbol at every position whose parent has the last position's symbol.

    The query is the last position. Its target is random, so no single symbol is right there: measure the change in KL.
    A changed symbol may itself be a parent; the predictors read the corrupted sequence as it is.
    """
    n, T = batch.tokens.shape
    query = torch.full((n,), T - 1)
    changed = children(batch.tokens, torch.from_numpy(np.array(task.parents)))[:, -1]
    shift = torch.from_numpy(rng.integers(1, task.symbols, size=n))
    shifted = (batch.tokens + shift[:, None]) % task.symbols
    corrupted = replace(batch, tokens=torch.where(changed, shifted, batch.tokens))
    assert bool((at(corrupted.tokens, query) == at(batch.tokens, query)).all())
    return Pairs(batch, corrupted, query, None, None)
