"""At which positions of a micro-batch the last layer must predict: the queries.

Under the trigger-output loss these are about a quarter of all positions. The sequences of a batch are sorted by their
number of queries, so that sequences in the same micro-batch have nearly as many. Missing ones are filled in by
repeating a sequence's last query, and the repetitions have weight zero in the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.training.fast.attention import BLOCK, QueryBlock, chosen_blocks


@dataclass(frozen=True)
class Queries:
    """Query positions of each sequence: chosen ones, or all of them when `positions` is None."""

    blocks: tuple[QueryBlock, ...]
    positions: Int[Tensor, "batch query"] | None
    rows: Int[Tensor, " batch_query"] | None
    """The positions as row numbers of the sequences laid end to end."""

    def choose(self, x: Tensor) -> Tensor:
        """The chosen rows of x [batch, pos, ...]; x itself if all are chosen."""
        if self.positions is None or self.rows is None:
            return x
        return x.flatten(0, 1).index_select(0, self.rows).view(*self.positions.shape, *x.shape[2:])

    def add_back(self, x: Float[Tensor, "batch pos d_model"], rows: Float[Tensor, "batch query d_model"]) -> None:
        """Add to the chosen rows of x."""
        if self.rows is None:
            x.add_(rows)
        else:
            x.flatten(0, 1).index_add_(0, self.rows, rows.flatten(0, 1))


@dataclass(frozen=True)
class MicroBatch:
    """Which sequences are in a micro-batch and, if positions are chosen, which ones and which of these are real."""

    sequences: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch query"] | None
    real: Bool[Tensor, "batch query"] | None
    """False for the repetitions that fill up `positions`."""
    bounds: Sequence[tuple[int, int]]
    """Least and greatest position of each block of queries."""

    def queries(self, mask: Float[Tensor, "pos pos"], everywhere: Queries) -> Queries:
        """The queries of the last layer; `everywhere` if all positions are."""
        if self.positions is None:
            return everywhere
        offset = torch.arange(len(self.sequences), device=mask.device)[:, None] * mask.shape[0]
        blocks = chosen_blocks(mask, self.positions, self.bounds)
        return Queries(blocks, self.positions, (self.positions + offset).view(-1))

    def places(self, pos: int) -> Int[Tensor, "batch query"]:
        """Where the queries stand in a whole batch of sequences of that length, laid end to end."""
        if self.positions is None:
            return self.sequences[:, None] * pos + torch.arange(pos, device=self.sequences.device)
        return self.sequences[:, None] * pos + self.positions


def whole_batches(batch: int, size: int, device: torch.device) -> list[MicroBatch]:
    """All positions of all sequences."""
    return [MicroBatch(part, None, None, ()) for part in torch.arange(batch, device=device).split(size)]


def chosen_batches(chosen: Bool[Tensor, "batch pos"], size: int, device: torch.device) -> list[MicroBatch]:
    """The chosen positions of the sequences that have any, sequences with the fewest first."""
    where = chosen.cpu().numpy()
    number = where.sum(1)
    order = np.argsort(number, kind="stable")
    order = order[number[order] > 0]
    row, position = np.nonzero(where[order])
    count = number[order]
    first = count.cumsum() - count
    positions = np.repeat(position[first + count - 1][:, None], count.max(initial=0), axis=1)
    positions[row, np.arange(len(row)) - first[row]] = position
    pieces = []
    for start in range(0, len(order), size):
        rows = slice(start, start + size)
        query = int(count[rows][-1])
        here = positions[rows, :query]
        edges = [(begin, min(begin + BLOCK, query)) for begin in range(0, query, BLOCK)]
        bounds = [(int(here[:, begin].min()), int(here[:, end - 1].max())) for begin, end in edges]
        real = np.arange(query) < count[rows, None]
        pieces.append(MicroBatch(_tensor(order[rows], device), _tensor(here, device), _tensor(real, device), bounds))
    return pieces


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
