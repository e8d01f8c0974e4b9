"""Markov chains of order n (Edelman et al. 2024, "The evolution of statistical induction heads"; Park et al. 2024,
"Competition dynamics shape algorithmic phases of in-context learning", arXiv 2412.01003).

Each sequence has its own chain. Its first n symbols are uniform, and then

    p(z_{t+1} = j | z_1..z_t) = P(j | z_{t-n+1}..z_t),        each row P( . | context) ~ Dirichlet(alpha, ..., alpha).

With a pool, M chains are drawn once, and each sequence takes one of them at random: a model can then memorise the pool
or infer the chain from the context. The first symbols are uniform, so that counts + alpha is the exact posterior:
symbols drawn from the stationary distribution would be evidence on the chain.

A context z_{t-n+1}..z_t has the number sum_i z_{t-i} S^i: the current symbol is its lowest digit.

The m-gram predictor counts what followed earlier occurrences of the last m - 1 symbols, c = z_{t-m+2}..z_t:

    p(z_{t+1} = j | z_1..z_t) = (N_t(c, j) + alpha) / (N_t(c) + S alpha),

and predicts 1/S for a context that has not occurred before. For m = n + 1 this is the exact posterior mean of P(j | c)
under the Dirichlet prior. A predictor that knows the pool of M chains weighs them by their likelihood,

    p(z_{t+1} = j | z_1..z_t) = sum_k w_k P_k(j | c),        w_k proportional to prod over i <= t of P_k(z_i | context),

and the `memorised 1-gram` uses the stationary frequencies of each chain in place of P_k.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import check_fields, require_integer
from induction_memory.task.batch import Batch, require_tokens
from induction_memory.task.corruptions import Pairs
from induction_memory.task.ideals import after_same_context, induction_head, previous
from induction_memory.task.protocol import Ideal, Predictor, read_only, register, require_draw

MOST_CONTEXTS = 4096
PEAKED = 0.3
"""The concentration of the variant `peaked`, as a share of the task's."""


@register
@field_docs
@dataclass(frozen=True)
class MarkovChains:
    """Markov chains: each sequence has its own chain, and the next symbol must be inferred from the context.

    >>> import induction_memory as im
    >>> task = im.task.MarkovChains(symbols=2, order=1, length=6)
    >>> task.sample(1, im.task.step_rng(0, 0)).tokens, list(task.predictors())
    (tensor([[1, 0, 0, 1, 0, 0]]), ['1-gram', '2-gram'])
    """

    name: ClassVar[str] = "markov"
    main: ClassVar[str] = "chain"
    groups: ClassVar[tuple[str, ...]] = ("chain", "start")

    symbols: int = 3
    """S, the size of the vocabulary."""
    order: int = 1
    """n, how many symbols the next one depends on."""
    length: int = 64
    """T, the number of input tokens."""
    alpha: float = 1.0
    """Concentration of the Dirichlet prior of each row."""
    pool: int | None = None
    """M, the number of chains in the pool; None draws a new chain for each sequence."""
    pool_seed: int = 0
    """Seed of the pool."""
    soft_targets: bool = False
    """Targets are the chain's own probabilities of the next symbol instead of a draw from them."""

    def __post_init__(self) -> None:
        check_fields(self, "task", symbols=(2, None), order=(1, None), pool=(1, None, "chains"), pool_seed=(0, None))
        require_integer(self.length, "task.length", self.order + 1, None, "tokens (more than task.order)")
        require(self.contexts <= MOST_CONTEXTS, "task.order", f"at most {MOST_CONTEXTS} contexts", self.contexts)
        require(self.alpha > 0, "task.alpha", "a number above 0", self.alpha)

    @property
    def contexts(self) -> int:
        """S^n, the number of rows of a chain."""
        return self.symbols**self.order

    @cached_property
    def chains(self) -> Float[np.ndarray, "chain context symbol"] | None:
        """The pool; None when chains are drawn anew."""
        if self.pool is None:
            return None
        rng = np.random.default_rng(np.random.SeedSequence(self.pool_seed, spawn_key=(self.symbols, self.order)))
        return read_only(rng.dirichlet(np.full(self.symbols, self.alpha), size=(self.pool, self.contexts)))

    @property
    def n_inputs(self) -> int:
        return self.symbols

    n_outputs = n_inputs

    def sample(self, n: int, rng: np.random.Generator) -> Batch:
        """Draw `n` sequences. Groups: `chain` (the context is complete) and `start` (it is not: any symbol follows)."""
        require_draw(n, self.length, rng)
        S, order, T = self.symbols, self.order, self.length
        if self.chains is None:
            chosen = np.full(n, -1)
            rows = rng.dirichlet(np.full(S, self.alpha), size=(n, self.contexts))
        else:
            chosen = rng.integers(len(self.chains), size=n)
            rows = self.chains[chosen]
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
            torch.from_numpy(next_row).float() if self.soft_targets else hard,
            counted=torch.ones_like(complete),
            groups={"chain": complete, "start": ~complete},
            main=self.main,
            latents={"rows": torch.from_numpy(rows), "chain": torch.from_numpy(chosen), "next": hard},
        )

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        both = tuple(str(symbol) for symbol in range(self.symbols))
        return both, both

    def predictors(self) -> dict[str, Predictor]:
        """`1-gram` ... `(n+1)-gram`, and with a pool the `memorised 1-gram` and the `memorised (n+1)-gram`.

        The last one is Bayes-optimal.
        """
        S, n = self.symbols, self.order
        found: dict[str, Predictor] = {
            f"{m}-gram": partial(gram, m=m, symbols=S, alpha=self.alpha) for m in range(1, n + 2)
        }
        if self.chains is not None:
            chains = torch.from_numpy(np.array(self.chains))
            found["memorised 1-gram"] = partial(memorised, chains=stationary(chains, n)[:, None, :], order=0)
            found[f"memorised {n + 1}-gram"] = partial(memorised, chains=chains, order=n)
        return found

    def sources(self, batch: Batch) -> dict[str, Tensor]:
        """`previous`: the n positions before. `induction`: what followed the current context before."""
        return {
            "previous": previous(batch.tokens, self.order),
            "induction": after_same_context(batch.tokens, self.order),
        }

    def associations(self) -> dict[str, Ideal]:
        """The memories of the induction head that counts transitions."""
        S, T = self.symbols, self.length
        before = sum(np.eye(T, k=-back) for back in range(1, self.order + 1))
        return induction_head(T, S, before=np.asarray(before), about="each position stores the n before it")

    def variants(self) -> dict[str, "MarkovChains"]:
        """`peaked`: rows nearer to one symbol. `fresh`: chains that are not in the pool."""
        found: dict[str, MarkovChains] = {"peaked": replace(self, alpha=PEAKED * self.alpha)}
        if self.pool is not None:
            found["fresh"] = replace(self, pool=None)
        return found

    def corruptions(self) -> dict[str, Callable[[Batch, np.random.Generator], Pairs]]:
        """`successors`: other symbols after every earlier occurrence of the query's context."""

        return {"successors": self.other_successors}

    def other_successors(self, batch: Batch, rng: np.random.Generator) -> Pairs:
        """Another symbol after every earlier occurrence of the query's context, the same shift for a whole sequence.

        The query is the last position. No single symbol is right there: measure the change in KL.
        """
        n, T = batch.tokens.shape
        query = torch.full((n,), T - 1)
        changed = after_same_context(batch.tokens, self.order)[:, -1].clone()
        changed[:, T - self.order :] = False  # the query's own context stays
        shift = torch.from_numpy(rng.integers(1, self.symbols, size=n))
        shifted: Tensor = (batch.tokens + shift[:, None]) % self.symbols
        corrupted = replace(batch, tokens=torch.where(changed, shifted, batch.tokens))
        return Pairs(batch, corrupted, query, None, None)


def gram(tokens: Int[Tensor, "batch pos"], m: int, symbols: int, alpha: float) -> Float[Tensor, "batch pos symbol"]:
    """The m-gram predictor's probabilities of the next symbol."""
    require_tokens(tokens, symbols)
    symbol = torch.nn.functional.one_hot(tokens, symbols).to(torch.float64)
    if m == 1:
        counts = symbol.cumsum(1)
    else:
        counts = after_same_context(tokens, m - 1).to(torch.float64) @ symbol
    return (counts + alpha) / (counts.sum(-1, keepdim=True) + symbols * alpha)


def memorised(
    tokens: Int[Tensor, "batch pos"], chains: Float[Tensor, "chain context symbol"], order: int
) -> Float[Tensor, "batch pos symbol"]:
    """The prediction from knowing that the chain is one of these, all equally likely.

    A chain of order 0 has one row of probabilities, whatever the context.
    """
    S = chains.shape[-1]
    require_tokens(tokens, S)
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
