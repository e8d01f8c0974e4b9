"""What readers of Markov chains would predict (model in `task.py`).

The m-gram reader counts what followed earlier occurrences of the last m - 1 symbols, c = z_{t-m+2}..z_t:

    p(z_{t+1} = j | z_1..z_t) = (N_t(c, j) + alpha) / (N_t(c) + S alpha),

and says 1/S for a context that has not occurred before. For m = n + 1 this is the exact posterior mean of P(j | c)
under the Dirichlet prior. A reader who knows the pool of M chains weighs them by their likelihood,

    p(z_{t+1} = j | z_1..z_t) = sum_k w_k P_k(j | c),        w_k proportional to prod over i <= t of P_k(z_i | context),

and the `memorised 1-gram` does the same with the stationary frequencies of each chain in place of P_k.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.positions import after_same_context
from induction_memory.task.protocol import Predictor


def predictors(task: Any) -> dict[str, Predictor]:
    """Candidate predictors, from the one that knows least to the Bayes-optimal one."""
    S, n = task.symbols, task.order
    found: dict[str, Predictor] = {
        f"{m}-gram": partial(gram, m=m, symbols=S, alpha=task.alpha) for m in range(1, n + 2)
    }
    if task.chains is not None:
        chains = torch.from_numpy(np.array(task.chains))
        found["memorised 1-gram"] = partial(memorised, chains=stationary(chains, n)[:, None, :], order=0)
        found[f"memorised {n + 1}-gram"] = partial(memorised, chains=chains, order=n)
    return found


def gram(tokens: Int[Tensor, "batch pos"], m: int, symbols: int, alpha: float) -> Float[Tensor, "batch pos symbol"]:
    """The m-gram reader's probabilities of the next symbol."""
    _require_symbols(tokens, symbols)
    symbol = torch.nn.functional.one_hot(tokens, symbols).to(torch.float64)
    if m == 1:
        counts = symbol.cumsum(1)
    else:
        counts = after_same_context(tokens, m - 1).to(torch.float64) @ symbol
    return (counts + alpha) / (counts.sum(-1, keepdim=True) + symbols * alpha)


def memorised(
    tokens: Int[Tensor, "batch pos"], chains: Float[Tensor, "chain context symbol"], order: int
) -> Float[Tensor, "batch pos symbol"]:
    """The prediction of a reader who knows that the chain is one of these, each as likely as the others.

    A chain of order 0 is one row: every symbol is evidence, and the prediction is the same after every context.
    """
    S = chains.shape[-1]
    _require_symbols(tokens, S)
    batch, pos = tokens.shape
    context = torch.zeros_like(tokens)
    for i in range(order):
        context[:, i:] += tokens[:, : pos - i] * S**i
    log_rows = chains.log()
    evidence = torch.zeros(batch, pos, len(chains), dtype=torch.float64)
    if order == 0:
        evidence[:] = log_rows[:, 0, tokens].permute(1, 2, 0)
    else:
        evidence[:, order:] = log_rows[:, context[:, order - 1 : -1], tokens[:, order:]].permute(1, 2, 0)
    weights = evidence.cumsum(1).softmax(-1)
    predicted = torch.einsum("btk,kbtj->btj", weights, chains[:, context])
    predicted[:, : max(order - 1, 0)] = 1 / S
    return predicted


def stationary(
    chains: Float[Tensor, "chain context symbol"], order: int, rounds: int = 60
) -> Float[Tensor, "chain symbol"]:
    """How often each symbol occurs in the long run.

    The transition matrix between contexts is squared `rounds` times, which takes 2^rounds steps. The chain is made lazy
    first (it stays in place with probability 1/2), so that chains that alternate converge too.
    """
    M, contexts, S = chains.shape
    here = torch.arange(contexts)
    step = torch.zeros(M, contexts, contexts, dtype=torch.float64)
    for j in range(S):
        step[:, here, (here * S + j) % contexts] += chains[:, :, j]
    step = (step + torch.eye(contexts, dtype=torch.float64)) / 2  # a lazy chain: the same frequencies, no cycles
    for _ in range(rounds):
        step = step @ step
        step = step / step.sum(-1, keepdim=True)
    frequency = step.mean(1)
    symbols = torch.zeros(M, S, dtype=torch.float64)
    return symbols.index_add(1, here % S, frequency)


def _require_symbols(tokens: Int[Tensor, "batch pos"], symbols: int) -> None:
    bad = tokens[(tokens < 0) | (tokens >= symbols)]
    require(len(bad) == 0, "tokens", f"ids of 0 to {symbols - 1} (the vocabulary)", bad[:1].tolist())
