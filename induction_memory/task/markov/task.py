"""Markov chains of order n (Edelman et al. 2024, "The evolution of statistical induction heads"; Park et al. 2024,
"Competition dynamics shape algorithmic phases of in-context learning", arXiv 2412.01003).

Each sequence has a chain of its own. Its first n symbols are uniform, and then

    p(z_{t+1} = j | z_1..z_t) = P(j | z_{t-n+1}..z_t),        each row P( . | context) ~ Dirichlet(alpha, ..., alpha).

With a pool, M chains are drawn once, and each sequence takes one of them at random: a model can then memorise the pool
or infer the chain from the context. First symbols drawn from the chain's stationary distribution would be evidence on
the chain, and counts + alpha would not be the exact posterior. That is why they are uniform.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.fields import read_only, require_integer, require_number
from induction_memory.task.protocol import Ideal, Predictor
from induction_memory.task.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from induction_memory.task.batch import Batch
    from induction_memory.task.pairs import Pairs

MOST_CONTEXTS = 4096
PEAKED = 0.3
"""The concentration of the variant `peaked`, as a share of the task's own."""


@register
@field_docs
@dataclass(frozen=True)
class MarkovChains:
    """Markov chains: each sequence has its own chain, and the next symbol must be inferred from the context.

    >>> import induction_memory as im
    >>> task = im.task.MarkovChains(symbols=2, order=1, length=6)
    >>> task.sample(1, im.step_rng(0, 0)).tokens, list(task.predictors())
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
    """M, the number of chains in the pool; without it each sequence draws a new chain."""
    pool_seed: int = 0
    """Which pool."""
    soft_targets: bool = False
    """Targets are the chain's own probabilities of the next symbol instead of a draw from them."""

    def __post_init__(self) -> None:
        require_integer(self.symbols, "task.symbols", 2, None)
        require_integer(self.order, "task.order", 1, None)
        require_integer(self.length, "task.length", self.order + 1, None, "tokens (more than task.order)")
        require(self.contexts <= MOST_CONTEXTS, "task.order", f"at most {MOST_CONTEXTS} contexts", self.contexts)
        require_number(self.alpha, "task.alpha", 0, float("inf"), open_low=True)
        if self.pool is not None:
            require_integer(self.pool, "task.pool", 1, None, "chains, or none")
        require_integer(self.pool_seed, "task.pool_seed", 0, None)
        require(isinstance(self.soft_targets, bool), "task.soft_targets", "True or False", self.soft_targets)

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

    @property
    def n_outputs(self) -> int:
        return self.symbols

    def sample(self, n: int, rng: np.random.Generator) -> "Batch":
        """Draw `n` sequences. Groups: `chain` (the context is complete) and `start` (it is not: any symbol follows)."""
        from induction_memory.task.markov.sequences import sample

        return sample(self, n, rng)

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        both = tuple(str(symbol) for symbol in range(self.symbols))
        return both, both

    def predictors(self) -> dict[str, Predictor]:
        """`1-gram` ... `(n+1)-gram`, and with a pool the `memorised 1-gram` and the `memorised (n+1)-gram`.

        The last one is Bayes-optimal.
        """
        from induction_memory.task.markov.predictors import predictors

        return predictors(self)

    def sources(self, batch: "Batch") -> "dict[str, Tensor]":
        """`previous`: the n positions before. `induction`: what followed the current context before."""
        from induction_memory.task.positions import after_same_context, previous

        return {
            "previous": previous(batch.tokens, self.order),
            "induction": after_same_context(batch.tokens, self.order),
        }

    def associations(self) -> dict[str, Ideal]:
        """The memories of the induction head that counts transitions."""
        from induction_memory.task.ideals import induction_head

        S, T = self.symbols, self.length
        before = sum(np.eye(T, k=-back) for back in range(1, self.order + 1))
        return induction_head(T, S, before=np.asarray(before), about="each position stores the n before it")

    def variants(self) -> dict[str, "MarkovChains"]:
        """`peaked`: rows nearer to one symbol. `fresh`: chains that are not in the pool."""
        found: dict[str, MarkovChains] = {"peaked": replace(self, alpha=PEAKED * self.alpha)}
        if self.pool is not None:
            found["fresh"] = replace(self, pool=None)
        return found

    def corruptions(self) -> "dict[str, Callable[[Batch, np.random.Generator], Pairs]]":
        """`successors`: other symbols after every earlier occurrence of the query's context."""
        from induction_memory.task.markov.sequences import other_successors

        return {"successors": partial(other_successors, self)}
