"""A patch: a value put at a site of a run (the sites' names are in components.py).

With `amount` a and the run's own activation y,  y <- y + a (value - y)  at the positions `where`. A *variant* of a run
is a set of patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.field_docs import field_docs


@field_docs
@dataclass(frozen=True)
class Patch:
    """Put `value` at `site`.

    >>> import torch
    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> intact = im.runner.record(run.model(step=600), run.task.sample(2, im.step_rng(0, 0)).tokens)
    >>> nothing = im.runner.Patch("L1H1", torch.zeros(1, 1, 128))
    >>> intact.patched_logits([[nothing]]).shape
    torch.Size([1, 2, 256, 65])
    """

    site: str
    """`L1H1`, `L2H1.k`, `L1H1->L2H1.k` ..."""
    value: Float[Tensor, "#batch #pos d"]
    """What to put there; for an edge, the replacement for its source's output."""
    where: Bool[Tensor, "batch pos"] | None = None
    """The positions to replace; all when not given."""
    amount: float | Float[Tensor, ""] = 1.0
    """How far to go from the run's own activation (0) to the value (1)."""

    @property
    def is_constant(self) -> bool:
        """Whether it puts the same vector at every position of a sequence."""
        return self.is_everywhere and self.value.shape[1] == 1

    @property
    def is_everywhere(self) -> bool:
        """Whether it replaces the run's own activation completely, at every position."""
        return self._is_whole and self.where is None

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.amount, float) and self.amount == 1.0

    def of(self, sequences: slice) -> "Patch":
        """The patch restricted to some of the sequences."""
        value = self.value if len(self.value) == 1 else self.value[sequences]
        return replace(self, value=value, where=None if self.where is None else self.where[sequences])

    def blend(
        self,
        own: Float[Tensor, "batch m d"],
        value: Float[Tensor, "batch m d"],
        where: Bool[Tensor, "batch m 1"] | None,
    ) -> Float[Tensor, "batch m d"]:
        """own + amount (value - own); `value` and `where` at the positions that `own` has."""
        new = value if self._is_whole else own + self.amount * (value - own)
        return new if where is None else torch.where(where, new, own)


Variant = Sequence[Patch]
