"""Clean sequences beside corrupted ones, for patching.

Only the tokens change: targets, groups and latents of the corrupted batch are the clean ones. A predictor reads tokens,
so it says what a perfect reader of the corrupted sequence would answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from induction_memory.errors import InputError, require
from induction_memory.field_docs import field_docs
from induction_memory.task.batch import Batch, Kind


@field_docs
@dataclass(frozen=True, eq=False)
class Pairs:
    """Clean sequences, their corrupted twins, and the positions of queries and answers."""

    clean: Batch
    corrupted: Batch
    query: Int[Tensor, " batch"]
    """The position t of each sequence's query."""
    answer: Int[Tensor, " batch"] | None
    """The right output there; None where targets are soft, so that only the change in KL can be measured."""
    other: Int[Tensor, " batch"] | None
    """What the corrupted sequence says instead, or an output to compare with; None where targets are soft."""
    roles: Mapping[str, Int[Tensor, " batch"]] = field(default_factory=dict)
    """Named positions of each sequence besides the query, such as the place of the answer."""

    def to(self, device: torch.device | str) -> "Pairs":
        """The same pairs on a device."""
        answer, other = (None if ids is None else ids.to(device) for ids in (self.answer, self.other))
        roles = {name: place.to(device) for name, place in self.roles.items()}
        return Pairs(self.clean.to(device), self.corrupted.to(device), self.query.to(device), answer, other, roles)

    @property
    def right(self) -> Int[Tensor, " batch"]:
        """The right output at the query; refused where there is no single one."""
        if self.answer is None:
            raise InputError("pairs: expected sequences with one right output, got soft ones (measure a change of KL)")
        return self.answer


def at(values: Int[Tensor, "batch pos"], position: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The value at one position per sequence."""
    return values.gather(1, position[:, None]).squeeze(1)


def last_of(mask: Bool[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """The last position of the mask in each sequence."""
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


def random_of(mask: Bool[Tensor, "batch pos"], rng: np.random.Generator) -> Int[Tensor, " batch"]:
    """A random position of the mask in each sequence."""
    return torch.from_numpy(rng.random(mask.shape)).to(mask.device).masked_fill(~mask, -1).argmax(1)


def with_queries(
    batch: Kind, possible: Bool[Tensor, "batch pos"], what: str, rng: np.random.Generator | None = None
) -> tuple[Kind, Int[Tensor, " chosen"]]:
    """The sequences that have a possible query, and one query in each: random, or the last without `rng`."""
    has_one = possible.any(1)
    require(bool(has_one.any()), "batch", f"at least one sequence in which {what}", "none")
    possible = possible[has_one]
    return batch[has_one], last_of(possible) if rng is None else random_of(possible, rng)
