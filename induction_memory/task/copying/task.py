"""Copying at controlled distances (Kawata et al. 2025, "From shortcut to induction head", arXiv 2512.18634).

A trigger q stands twice in each sequence. What followed it the first time, o, is asked for the second time:

    z = ( l_1 tokens   q   o   l_2 tokens   q   ... ),        target at the second q: o.

All other tokens, o included, are uniform over an alphabet without the trigger. Training sequences have l_1 = l_2 = l,
with l drawn from the given spans. The output then stands at the middle of what has been read, so that a positional
shortcut does as well as an induction head. With few spans the shortcut is easy to store; with many it is not. Twins
with l_1 != l_2 and the second trigger where it stood before tell the two apart.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.fields import as_tuple, require_choice, require_integer
from induction_memory.task.protocol import Ideal, Predictor
from induction_memory.task.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from induction_memory.task.batch import Batch
    from induction_memory.task.pairs import Pairs

Placement = Literal["middle", "elsewhere", "any"]


@register
@field_docs
@dataclass(frozen=True)
class Copying:
    """Copying: what followed the trigger the first time is asked for the second time, at controlled distances.

    >>> import induction_memory as im
    >>> list(im.task.Copying(spans=(4, 6)).predictors())
    ['uniform', 'shortcut', 'induction']
    """

    name: ClassVar[str] = "copying"
    main: ClassVar[str] = "query"
    groups: ClassVar[tuple[str, ...]] = ("query",)

    alphabet: int = 32
    """How many tokens there are besides the trigger."""
    spans: tuple[int, ...] = (4, 6, 8, 10, 12)
    """The values of l, each as likely as the others."""
    placement: Placement = "middle"
    """l_1 = l_2 = l; any l_1 != l_2 with l_1 + l_2 = 2 l (elsewhere); or both drawn from the spans (any)."""
    longest: int | None = None
    """The largest l that a sequence has room for; the largest of the spans when not given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", as_tuple(self.spans, "task.spans"))
        require_integer(self.alphabet, "task.alphabet", 2, None, "tokens")
        require(len(self.spans) > 0, "task.spans", "at least one", "none")
        for span in self.spans:
            require_integer(span, "task.spans", 0, self.longest)
        require(len(set(self.spans)) == len(self.spans), "task.spans", "different ones", self.spans)
        if self.longest is not None:
            require_integer(self.longest, "task.longest", 0, None)
        require_choice(self.placement, "task.placement", Placement)
        room = self.placement != "elsewhere" or min(self.spans) >= 1
        require(room, "task.spans", "1 or more where the output is not in the middle", min(self.spans))

    @property
    def length(self) -> int:
        """T = 2 l + 3 for the largest l; shorter sequences are filled up with tokens of the alphabet."""
        return 2 * (max(self.spans) if self.longest is None else self.longest) + 3

    @property
    def trigger(self) -> int:
        """q, the id after those of the alphabet."""
        return self.alphabet

    @property
    def n_inputs(self) -> int:
        return self.alphabet + 1

    @property
    def n_outputs(self) -> int:
        return self.alphabet

    def sample(self, n: int, rng: np.random.Generator) -> "Batch":
        """Draw `n` sequences. The only group is `query`, the second trigger."""
        from induction_memory.task.copying.sequences import sample

        return sample(self, n, rng)

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        outputs = tuple(str(token) for token in range(self.alphabet))
        return (*outputs, "q"), outputs

    def predictors(self) -> dict[str, Predictor]:
        """`uniform`, `shortcut` (copies the middle of what has been read) and `induction`, which is Bayes-optimal."""
        from induction_memory.task.copying.sequences import predictors

        return predictors(self)

    def sources(self, batch: "Batch") -> "dict[str, Tensor]":
        """`previous`; for the query `induction`, where the output stands, and `shortcut`, the middle."""
        from induction_memory.task.copying.sequences import sources

        return sources(self, batch)

    def associations(self) -> dict[str, Ideal]:
        """The two ways to find the output, and the copy."""
        from induction_memory.task.ideals import induction_head

        T = self.length
        middle = np.zeros((T, T))
        for span in self.spans:
            middle[2 * span + 2, span + 1] = 1
        matched = np.arange(self.n_inputs) == self.trigger
        shortcut = Ideal("position", "position", middle, "the query's position stores the middle")
        return induction_head(T, self.n_inputs, self.n_outputs, matched=matched) | {"shortcut": shortcut}

    def variants(self) -> dict[str, "Copying"]:
        """`elsewhere`: the output is not in the middle. `other spans`: values of l between the training spans."""
        largest = max(self.spans) if self.longest is None else self.longest
        found: dict[str, Copying] = {}
        if self.placement != "elsewhere" and any(self.spans):
            spans = tuple(span for span in self.spans if span >= 1)
            found["elsewhere"] = replace(self, spans=spans, placement="elsewhere", longest=largest)
        unseen = tuple(span for span in range(1, largest + 1) if span not in self.spans)
        if unseen:
            found["other spans"] = replace(self, spans=unseen, longest=largest)
        return found

    def corruptions(self) -> "dict[str, Callable[[Batch, np.random.Generator], Pairs]]":
        """`output`: another output after the first trigger. `trigger`: the first trigger becomes another token."""
        from induction_memory.task.copying.sequences import corrupted

        return {"output": partial(corrupted, self, "output"), "trigger": partial(corrupted, self, "trigger")}
