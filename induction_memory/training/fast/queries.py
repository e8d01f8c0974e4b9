"""Which positions of a micro-batch the last layer must answer for.

Under the trigger-output loss that is about a quarter of them. The sequences of a batch are sorted by how many they
have, so that those which go through together have nearly as many; what is missing is filled by repeating a sequence's
last one, whose repetitions weigh nothing in the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """The same as row numbers of the sequences laid end to end."""

    def choose(self, x: Tensor) -> Tensor:
        """The chosen rows of x [batch, pos, ...]; x itself when all are."""
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
class Piece:
    """A micro-batch: which sequences, and for chosen positions where they are and which are no repetitions."""

    sequences: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch query"] | None
    real: Bool[Tensor, "batch query"] | None
    """False for the repetitions that fill up `positions`."""
    bounds: Sequence[tuple[int, int]]
    """Least and greatest position of each block of queries."""

    def queries(self, mask: Float[Tensor, "pos pos"], everywhere: Queries) -> Queries:
        """The queries of the last layer; `everywhere` if they are all."""
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


def whole_pieces(batch: int, size: int, device: torch.device) -> list[Piece]:
    """All positions of all sequences."""
    return [Piece(part, None, None, ()) for part in torch.arange(batch, device=device).split(size)]


def chosen_pieces(chosen: Bool[Tensor, "batch pos"], size: int, device: torch.device) -> list[Piece]:
    """The chosen positions of the sequences that have any, in order of their number."""
    chosen = chosen.cpu()
    number = chosen.sum(1)
    order = torch.argsort(number, stable=True)
    order = order[number[order] > 0]
    if not len(order):
        return []
    pieces = []
    for sequences in order.split(size):
        row, position = chosen[sequences].nonzero(as_tuple=True)
        count = number[sequences]
        first = count.cumsum(0) - count
        query = int(count[-1])
        positions = position[first + count - 1][:, None].repeat(1, query)
        positions[row, torch.arange(len(row)) - first[row]] = position
        bounds = [(int(part.min()), int(part.max())) for part in positions.split(BLOCK, dim=1)]
        real = torch.arange(query) < count[:, None]
        pieces.append(Piece(sequences.to(device), positions.to(device), real.to(device), bounds))
    return pieces
