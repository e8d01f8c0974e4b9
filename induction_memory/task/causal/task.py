"""Induction over a causal graph (Nichani, Damian & Lee 2024, "How transformers learn causal structure with gradient
descent", arXiv 2402.14735).

A graph gives each position i of 1..T a parent p(i) < i, or none; it is the same for all sequences. Each sequence has a
transition matrix of its own, with rows pi( . | s) ~ Dirichlet(alpha, ..., alpha), and

    z_i ~ pi( . | z_{p(i)}),        uniform if i has no parent.

A position t that is asked has the target y ~ pi( . | z_t). In the paper only the last position is asked, and it has no
parent. When all are asked, each has its own target, which does not occur in the sequence. Roots are drawn uniformly. A
root drawn from the stationary distribution would be evidence on pi, and counts + alpha would not be the exact
posterior.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from jaxtyping import Int

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.fields import as_tuple, read_only, require_choice, require_integer, require_number
from induction_memory.task.protocol import Ideal, Predictor
from induction_memory.task.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from induction_memory.task.batch import Batch
    from induction_memory.task.pairs import Pairs

Graph = Literal["random", "chain", "binary"]
Asked = Literal["last", "all"]


@register
@field_docs
@dataclass(frozen=True)
class CausalGraph:
    """Chains along a causal graph: each symbol depends on the one at its parent's position.

    >>> import induction_memory as im
    >>> task = im.task.CausalGraph(length=6, graph="chain")
    >>> task.sample(2, im.step_rng(0, 0)).counted
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
    """A parent drawn uniformly from the earlier positions, the position before (chain), (i - 1) // 2 (binary), or the
    parents themselves, one per position, counted from 0 and -1 for none."""
    graph_seed: int = 0
    """Which random graph."""
    asked: Asked = "last"
    """Ask at the last position only, as in the paper, or at all positions."""

    def __post_init__(self) -> None:
        require_integer(self.symbols, "task.symbols", 2, None)
        require_integer(self.length, "task.length", 2, None, "positions")
        require_number(self.alpha, "task.alpha", 0, float("inf"), open_low=True)
        require_integer(self.graph_seed, "task.graph_seed", 0, None)
        require_choice(self.asked, "task.asked", Asked)
        if isinstance(self.graph, str):
            require_choice(self.graph, "task.graph", Graph, "a tuple")
            return
        object.__setattr__(self, "graph", as_tuple(self.graph, "task.graph"))
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

    @property
    def n_outputs(self) -> int:
        return self.symbols

    def sample(self, n: int, rng: np.random.Generator) -> "Batch":
        """Draw `n` sequences. The only group is `query`: the positions that are asked."""
        from induction_memory.task.causal.sequences import sample

        return sample(self, n, rng)

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        both = tuple(str(symbol) for symbol in range(self.symbols))
        return both, both

    def predictors(self) -> dict[str, Predictor]:
        """`uniform`, `chain` (takes each position for the child of the one before) and `bayes` (knows the graph)."""
        from induction_memory.task.causal.sequences import predictors

        return predictors(self)

    def sources(self, batch: "Batch") -> "dict[str, Tensor]":
        """`parent`: the query's parent. `induction`: positions whose parent has the query's symbol."""
        from induction_memory.task.causal.sequences import sources

        return sources(self, batch)

    def associations(self) -> dict[str, Ideal]:
        """The memories of the construction in the paper."""
        from induction_memory.task.ideals import induction_head

        S, T = self.symbols, self.length
        parent = (self.parents[:, None] == np.arange(T)).astype(np.float64)
        return induction_head(T, S, before=parent, about="each position stores its parent")

    def variants(self) -> dict[str, "CausalGraph"]:
        """`chain`: the same task along a chain. `other graph`: the same task along another random graph."""
        other = replace(self, graph="random", graph_seed=self.graph_seed + 1)
        found = {"chain": replace(self, graph="chain"), "other graph": other}
        return {name: task for name, task in found.items() if not np.array_equal(task.parents, self.parents)}

    def corruptions(self) -> "dict[str, Callable[[Batch, np.random.Generator], Pairs]]":
        """`children`: other symbols at every position whose parent has the query's symbol."""
        from induction_memory.task.causal.sequences import other_children

        return {"children": partial(other_children, self)}
