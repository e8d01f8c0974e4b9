"""Induction over a causal graph (Nichani, Damian & Lee 2024, "How transformers learn causal structure with gradient
descent", arXiv 2402.14735).

A graph gives each position i of 1..T a parent p(i) < i, or none; it is the same for all sequences. Each sequence has a
different transition matrix, with rows pi( . | s) ~ Dirichlet(alpha, ..., alpha), and

    z_i ~ pi( . | z_{p(i)}),        uniform if i has no parent.

A counted position t has the target y ~ pi( . | z_t). In the paper only the last position counts, and it has no parent.
If all count, each has its own target, which does not occur in the sequence. Roots are drawn uniformly, so that counts +
alpha is the exact posterior: a root drawn from the stationary distribution would be evidence on pi.

A predictor that takes q(i) as the parent of i counts the children of the query's symbol,

    p(y = j | z_1..z_t) = (N_t(z_t, j) + alpha) / (N_t(z_t) + S alpha),
    N_t(s, j) = number of i <= t with z_{q(i)} = s and z_i = j.

With q = p this is the exact posterior mean of pi(j | z_t); with q(i) = i - 1 it assumes a chain.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import check_fields, require_integer
from induction_memory.task.batch import Batch, require_tokens
from induction_memory.task.corruptions import Pairs, at
from induction_memory.task.ideals import induction_head, one_key
from induction_memory.task.protocol import Ideal, Predictor, read_only, register, require_draw

Graph = Literal["random", "chain", "binary"]
Asked = Literal["last", "all"]


@register
@field_docs
@dataclass(frozen=True)
class CausalGraph:
    """Chains along a causal graph: each symbol depends on the symbol at its parent's position.

    >>> import induction_memory as im
    >>> task = im.task.CausalGraph(length=6, graph="chain")
    >>> task.sample(2, im.task.step_rng(0, 0)).counted
    tensor([[False, False, False, False, False,  True],
            [False, False, False, False, False,  True]])
    """

    name: ClassVar[str] = "causal-graph"
    main: ClassVar[str] = "query"
    groups: ClassVar[tuple[str, ...]] = ("query",)

    symbols: int = 8
    """S, the size of the vocabulary."""
    length: int = 32
    """T, the number of positions."""
    alpha: float = 0.3
    """Concentration of the Dirichlet prior of each row of pi."""
    graph: Graph | tuple[int, ...] = "random"
    """How parents are chosen: uniformly from the earlier positions (random), the position before (chain), (i - 1) // 2
    (binary), or a list with one parent per position, counted from 0, -1 for none."""
    graph_seed: int = 0
    """Which random graph."""
    asked: Asked = "last"
    """Count only the last position, as in the paper, or all positions."""

    def __post_init__(self) -> None:
        check_fields(self, "task", symbols=(2, None), length=(2, None, "positions"), graph_seed=(0, None))
        require(self.alpha > 0, "task.alpha", "a number above 0", self.alpha)
        if isinstance(self.graph, str):
            return
        require(
            len(self.graph) == self.length, "task.graph", f"one parent per position ({self.length})", len(self.graph)
        )
        for place, parent in enumerate(self.graph):
            require_integer(parent, f"task.graph[{place}]", -1, place - 1, "(an earlier position, or -1 for none)")
        require(self.graph[-1] == -1, "task.graph", "no parent (-1) of the last position", self.graph[-1])

    @cached_property
    def parents(self) -> Int[np.ndarray, " pos"]:
        """p(i), counted from 0; -1 for none. The first and the last position have none."""
        here = np.arange(self.length)
        if isinstance(self.graph, tuple):
            parents = np.array(self.graph)
        elif self.graph == "chain":
            parents = here - 1
        elif self.graph == "binary":
            parents = np.where(here > 0, (here - 1) // 2, -1)
        else:
            rng = np.random.default_rng(self.graph_seed)
            parents = np.array([-1, *(int(rng.integers(i)) for i in range(1, self.length))])
        parents[-1] = -1
        return read_only(parents)

    @property
    def n_inputs(self) -> int:
        return self.symbols

    n_outputs = n_inputs

    def sample(self, n: int, rng: np.random.Generator) -> Batch:
        """Draw `n` sequences. The only group is `query`: the counted positions."""
        require_draw(n, self.length, rng)
        S, T = self.symbols, self.length
        rows = rng.dirichlet(np.full(S, self.alpha), size=(n, S))
        thresholds = rows.cumsum(-1)[..., :-1]
        roots = rng.integers(S, size=(n, T))
        uniform = rng.random((n, T))
        tokens, here = np.empty((n, T), dtype=np.int64), np.arange(n)
        for i, parent in enumerate(self.parents):
            child = (uniform[:, i, None] >= thresholds[here, tokens[:, parent]]).sum(-1) if parent >= 0 else roots[:, i]
            tokens[:, i] = child
        targets = (rng.random((n, T, 1)) >= thresholds[here[:, None], tokens]).sum(-1)
        asked = torch.ones(n, T, dtype=torch.bool)
        if self.asked == "last":
            asked[:, :-1] = False
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            counted=asked,
            groups={"query": asked},
            main=self.main,
            latents={"rows": torch.from_numpy(rows)},
        )

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        both = tuple(str(symbol) for symbol in range(self.symbols))
        return both, both

    def predictors(self) -> dict[str, Predictor]:
        """`uniform`, `chain` (assumes that each position's parent is the one before) and `bayes` (knows the graph)."""
        parents = torch.from_numpy(np.array(self.parents))
        chain = torch.arange(self.length) - 1
        S, alpha = self.symbols, self.alpha
        return {
            "uniform": lambda tokens: torch.full((*tokens.shape, S), 1 / S, dtype=torch.float64),
            "chain": partial(along, parents=chain, symbols=S, alpha=alpha),
            "bayes": partial(along, parents=parents, symbols=S, alpha=alpha),
        }

    def sources(self, batch: Batch) -> dict[str, Tensor]:
        """`parent`: the query's parent. `induction`: positions whose parent has the query's symbol."""
        parents = torch.from_numpy(np.array(self.parents))[: batch.tokens.shape[1]]
        return {
            "parent": one_key(parents.expand_as(batch.tokens), batch.tokens.shape[1]),
            "induction": children(batch.tokens, parents),
        }

    def associations(self) -> dict[str, Ideal]:
        """The memories of the construction in the paper."""
        S, T = self.symbols, self.length
        parent = (self.parents[:, None] == np.arange(T)).astype(np.float64)
        return induction_head(T, S, before=parent, about="each position stores its parent")

    def variants(self) -> dict[str, "CausalGraph"]:
        """`chain`: the same task along a chain. `other graph`: the same task along another random graph."""
        other = replace(self, graph="random", graph_seed=self.graph_seed + 1)
        found = {"chain": replace(self, graph="chain"), "other graph": other}
        return {name: task for name, task in found.items() if not np.array_equal(task.parents, self.parents)}

    def corruptions(self) -> dict[str, Callable[[Batch, np.random.Generator], Pairs]]:
        """`children`: other symbols at every position whose parent has the query's symbol."""

        return {"children": self.other_children}

    def other_children(self, batch: Batch, rng: np.random.Generator) -> Pairs:
        """Another symbol at every position whose parent has the last position's symbol.

        The query is the last position. Its target is random, so no single symbol is right there: measure the change in
        KL. A changed symbol may itself be a parent. The predictors read the corrupted sequence.
        """
        n, T = batch.tokens.shape
        query = torch.full((n,), T - 1)
        changed = children(batch.tokens, torch.from_numpy(np.array(self.parents)))[:, -1]
        shift = torch.from_numpy(rng.integers(1, self.symbols, size=n))
        shifted = (batch.tokens + shift[:, None]) % self.symbols
        corrupted = replace(batch, tokens=torch.where(changed, shifted, batch.tokens))
        assert bool((at(corrupted.tokens, query) == at(batch.tokens, query)).all())
        return Pairs(batch, corrupted, query, None, None)


def along(
    tokens: Int[Tensor, "batch pos"], parents: Int[Tensor, " longest"], symbols: int, alpha: float
) -> Float[Tensor, "batch pos symbol"]:
    """Probabilities of a child of the current position, for a predictor that assumes these parents."""
    require_tokens(tokens, symbols)
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
