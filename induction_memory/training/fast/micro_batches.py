"""A batch in pieces (micro-batches) that stay in the CPU cache, with their queries, memory and threads.

The queries are the positions at which the last layer must predict: under the trigger-output loss about a quarter of all
positions. The sequences of a batch are sorted by their number of queries, so that sequences in the same micro-batch
have nearly as many. Sequences with fewer repeat their last query, with weight zero in the loss.

New memory costs page faults in every micro-batch, so buffers are named and kept. Gradients are summed per group of
micro-batches. Each thread takes the next free group and works through it alone, with library calls that use one thread
each: at these sizes, two threads on separate groups lose less time than two threads that share every small product. The
groups do not depend on the number of threads, and their sums are added in a fixed order.
"""

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK = 64
GROUPS = 16


class Workspace:
    """Named float32 buffers on one device. A buffer's content is valid until its name is requested again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """An uninitialised contiguous tensor of this shape, in the memory of this name."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, device=self.device)
        return buffer[:size].view(shape)


class Sums:
    """Named sums of gradients that start at zero, on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.named: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The sum of this name; the caller adds to it in place."""
        if name not in self.named:
            self.named[name] = torch.zeros(shape, device=self.device)
        return self.named[name]


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries. Each of the keys 0..keys-1 is visible to at least one query; the keys 0..shared-1 to all."""

    number: int
    rows: slice
    """Which of the queries."""
    keys: int
    shared: int
    mask: Float[Tensor, "*batch query masked_key"]
    """Added to the scores of keys shared..keys-1: 0, or -inf where the key comes after the query."""


def causal_mask(pos: int, device: torch.device) -> Float[Tensor, "query key"]:
    """0 where the key is not after the query, else -inf."""
    return torch.full((pos, pos), -torch.inf, device=device).triu_(1)


def causal_blocks(mask: Float[Tensor, "query key"]) -> tuple[QueryBlock, ...]:
    """The blocks if every position is a query."""
    pos, blocks = mask.shape[0], []
    for number, start in enumerate(range(0, pos, BLOCK)):
        rows = slice(start, min(start + BLOCK, pos))
        blocks.append(QueryBlock(number, rows, rows.stop, start, mask[rows, rows]))
    return tuple(blocks)


@dataclass(frozen=True)
class Piece:
    """A micro-batch in one layer: its tokens, the layer's queries, and the memory for the computation."""

    tokens: Int[Tensor, "batch pos"]
    blocks: tuple[QueryBlock, ...]
    buffers: Workspace
    sums: Sums
    positions: Int[Tensor, "batch query"] | None = None
    """The queries of each sequence; None if every position is one."""
    rows: Int[Tensor, " batch_query"] | None = None
    """The queries as row numbers of the sequences laid end to end."""

    def choose(self, x: Tensor) -> Tensor:
        """The rows of x [batch, pos, ...] at the queries; x itself if every position is one."""
        if self.positions is None or self.rows is None:
            return x
        return x.flatten(0, 1).index_select(0, self.rows).view(*self.positions.shape, *x.shape[2:])

    def add_back(self, x: Float[Tensor, "batch pos d_model"], rows: Float[Tensor, "batch query d_model"]) -> None:
        """Add to the rows of x at the queries."""
        if self.rows is None:
            x.add_(rows)
        else:
            x.flatten(0, 1).index_add_(0, self.rows, rows.flatten(0, 1))


@dataclass(frozen=True)
class MicroBatch:
    """The sequences of a micro-batch and, if only some positions are queries, which ones, and which are padding."""

    sequences: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch query"] | None = None
    real: Bool[Tensor, "batch query"] | None = None
    """False for the repetitions that fill up `positions`."""
    bounds: Sequence[tuple[int, int]] = ()
    """Least and greatest position of each BLOCK of queries."""

    def chosen(self, whole: Piece, mask: Float[Tensor, "pos pos"]) -> Piece:
        """The piece with this micro-batch's queries; `whole` has all positions."""
        if self.positions is None:
            return whole
        blocks = []
        for number, (least, greatest) in enumerate(self.bounds):
            rows = slice(number * BLOCK, min(number * BLOCK + BLOCK, self.positions.shape[1]))
            here = self.positions[:, rows]
            masked = mask[:, least + 1 : greatest + 1].index_select(0, here.reshape(-1))
            masked = masked.view(*here.shape, greatest - least)
            blocks.append(QueryBlock(number, rows, greatest + 1, least + 1, masked))
        offset = torch.arange(len(self.sequences), device=mask.device)[:, None] * mask.shape[0]
        return replace(whole, blocks=tuple(blocks), positions=self.positions, rows=(self.positions + offset).view(-1))

    def places(self, pos: int) -> Int[Tensor, "batch query"]:
        """The row numbers of the queries in a whole batch of sequences of this length, laid end to end."""
        if self.positions is None:
            return self.sequences[:, None] * pos + torch.arange(pos, device=self.sequences.device)
        return self.sequences[:, None] * pos + self.positions


def micro_batches(chosen: Bool[Tensor, "batch pos"], size: int) -> list[MicroBatch]:
    """The micro-batches of all sequences with chosen positions, sequences with the fewest first."""
    device = chosen.device
    if bool(chosen.all()):
        return list(map(MicroBatch, torch.arange(len(chosen), device=device).split(size)))
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
        here, bounds = positions[rows, :query], []
        for begin in range(0, query, BLOCK):
            last = min(begin + BLOCK, query) - 1
            bounds.append((int(here[:, begin].min()), int(here[:, last].max())))
        real = np.arange(query) < count[rows, None]
        sequences, real = torch.tensor(order[rows], device=device), torch.tensor(real, device=device)
        pieces.append(MicroBatch(sequences, torch.tensor(here, device=device), real, bounds))
    return pieces


@contextmanager
def library_threads(count: int | None) -> Iterator[int]:
    """Inside the block, each library call uses `count` threads (None: as before); yields the number used before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


Work = Callable[[MicroBatch, Workspace, Sums], None]

_idle: defaultdict[torch.device, deque[Workspace]] = defaultdict(deque)


def run_groups(work: Work, pieces: Sequence[MicroBatch], device: torch.device, threads: int) -> Sums:
    """Process every piece, in groups over `threads` threads; returns the sums over all groups."""
    sums = [Sums(device) for _ in range(GROUPS)]
    waiting = reversed(range(GROUPS))  # the last groups have the most work
    errors: list[BaseException] = []

    def worker() -> None:
        torch.set_num_threads(1)  # for library calls of this thread
        try:
            buffers = _idle[device].pop()
        except IndexError:
            buffers = Workspace(device)
        try:
            with torch.no_grad():
                while not errors and (number := next(waiting, None)) is not None:
                    for piece in pieces[number::GROUPS]:
                        work(piece, buffers, sums[number])
        except BaseException as error:
            errors.append(error)
        finally:
            _idle[device].append(buffers)

    helpers = [threading.Thread(target=worker, name=f"micro-batches {i}") for i in range(1, threads)]
    for helper in helpers:
        helper.start()
    worker()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    total = Sums(device)
    for part in sums:
        for name, value in part.named.items():
            total(name, *value.shape).add_(value)
    return total
