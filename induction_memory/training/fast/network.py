"""A whole pass of a micro-batch through the model, forward and backward, on the model's own parameters.

Blocks below the last compute every position. The last block, with all that follows it (`last_block.py`), computes only
the requested queries. Backward stops at the lowest block that it needs: below it nothing learns.

Groups of micro-batches over threads, with results that do not depend on the number of threads.

Each thread takes the next free group and works through it alone, with library calls that use one thread each: at these
sizes, two threads on separate groups lose less time than two threads that share every small product. Each group has its
own sums, and these are added in the order of the groups.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.clamps import Clamps, clamped_pattern
from induction_memory.training.fast.attention import causal_blocks, causal_mask
from induction_memory.training.fast.block import EMBEDDINGS, Block, LayerNorm
from induction_memory.training.fast.last_block import BlockTail, LinearTail, Tail
from induction_memory.training.fast.lookup import Table, add_by_row, look_up
from induction_memory.training.fast.queries import MicroBatch, Queries
from induction_memory.training.fast.workspace import Sums, Workspace


class Network:
    """A model's weights, ready for one step."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        names: tuple[str, ...],
        tied: bool,
        eps: float,
        pos: int,
        clamps: Clamps,
    ) -> None:
        """`names` are the parameters that learn."""
        trained = frozenset(names)
        W_E, W_pos, W_U = (parameters[name] for name in ("embed.W_E", "pos_embed.W_pos", "unembed.W_U"))
        self.trained, self.tied, self.clamps = trained, tied, clamps
        self.shapes = {name: parameters[name].shape for name in names}
        self.embedded = Table(W_E, W_pos[:pos])
        self.mask = causal_mask(pos, W_E.device)
        self.everywhere = Queries(causal_blocks(self.mask), None, None)
        blocks = [Block(layer, config, parameters, trained, eps, self.embedded) for layer in range(config.n_layers)]
        self.blocks = blocks[:-1]
        unembedding_learns = "unembed.W_U" in trained or (tied and "embed.W_E" in trained)
        if LinearTail.fits(config):
            self.tail: Tail = LinearTail(config, parameters, trained, unembedding_learns)
        else:
            norm = LayerNorm.read("ln_final", parameters, trained, eps) if config.layer_norm else None
            self.tail = BlockTail(blocks[-1], norm, W_U, unembedding_learns)

    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        targets: Int[Tensor, "batch query"],
        weights: Float[Tensor, "batch query"] | None,
        piece: MicroBatch,
        buffers: Workspace,
        sums: Sums,
    ) -> tuple[Float[Tensor, "batch query"], Bool[Tensor, "batch query"]]:
        """-log p(target) and correctness at the piece's queries; with weights, add the gradients to the sums."""
        x = buffers("x", *tokens.shape, self.embedded.by_token.shape[1])
        look_up(self.embedded, tokens, None, x)
        passed = []
        for block in self.blocks:
            pattern = self._pattern(block.layer, tokens, self.everywhere)
            x, saved = block.forward(x, tokens, self.everywhere, pattern, buffers, sums)
            passed.append(saved)
        queries = piece.queries(self.mask, self.everywhere)
        nll, correct, dx = self.tail.run(
            x,
            tokens,
            queries,
            self._pattern(len(self.blocks), tokens, queries),
            targets.flatten(),
            None if weights is None else weights.flatten(),
            buffers,
            sums,
        )
        for block, saved in zip(reversed(self.blocks), reversed(passed), strict=True):
            if dx is not None:
                dx = block.backward(dx, saved, tokens, buffers, sums)
        if dx is not None:
            add_by_row(dx, tokens, None, sums, "x", len(self.embedded.by_token), len(self.embedded.by_position))
        return nll.view_as(targets), correct.view_as(targets)

    def _pattern(
        self, layer: int, tokens: Int[Tensor, "batch pos"], queries: Queries
    ) -> Float[Tensor, "batch query key"] | None:
        kind = self.clamps.kind(layer, len(self.blocks) + 1)
        return None if kind is None else queries.choose(clamped_pattern(kind, tokens))

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """The gradients of all trained parameters, from the sums over the batch."""
        found = self.tail.gradients(sums)
        for block in self.blocks:
            found |= block.maps.gradients(sums)
        if not self.trained.isdisjoint(EMBEDDINGS):
            found |= self._embedding_gradients(sums)
        if "unembed.W_U" in self.trained:
            found["unembed.W_U"] = self.tail.unembedding_gradient(sums)
        rest = {name: sums(name, *self.shapes[name]) for name in self.trained - found.keys()}
        return {name: (found | rest)[name] for name in self.shapes}

    def _embedding_gradients(self, sums: Sums) -> dict[str, Tensor]:
        by_token = sums("x.token", *self.embedded.by_token.shape)
        by_position = sums("x.position", *self.embedded.by_position.shape)
        first = self.blocks[0] if self.blocks else getattr(self.tail, "block", None)
        if first is not None and first.maps.embedded is not None:
            rest = first.maps.embedding_gradients(sums)
            by_token, by_position = by_token + rest.by_token, by_position + rest.by_position
        if self.tied:
            by_token = by_token + self.tail.unembedding_gradient(sums).T
        if "pos_embed.W_pos" not in self.trained:
            return {"embed.W_E": by_token}
        W_pos = by_position.new_zeros(self.shapes["pos_embed.W_pos"])
        W_pos[: len(by_position)] = by_position
        return {"embed.W_E": by_token, "pos_embed.W_pos": W_pos}


Work = Callable[[MicroBatch, Workspace, Sums], None]

_idle: deque[Workspace] = deque()


@contextmanager
def one_thread_a_call() -> Iterator[int]:
    """Inside the block, library calls use one thread each; yields the number they used before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def run_groups(work: Work, groups: Sequence[Sequence[MicroBatch]], device: torch.device, threads: int) -> Sums:
    """Do the work of every piece in `threads` threads; returns the sums over all groups."""
    sums = [Sums(device) for _ in groups]
    waiting = deque(reversed(range(len(groups))))  # the last groups have the most work
    errors: list[BaseException] = []

    def worker() -> None:
        torch.set_num_threads(1)  # for library calls of this thread
        buffers = _take(device)
        try:
            with torch.no_grad():
                while not errors:
                    try:
                        number = waiting.popleft()
                    except IndexError:
                        return
                    for piece in groups[number]:
                        work(piece, buffers, sums[number])
        except BaseException as error:
            errors.append(error)
        finally:
            _idle.append(buffers)

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
        total.add(part)
    return total


def _take(device: torch.device) -> Workspace:
    """A workspace that no thread uses now."""
    for _ in range(len(_idle)):
        try:
            buffers = _idle.popleft()
        except IndexError:
            break
        if buffers.device == device:
            return buffers
        _idle.append(buffers)
    return Workspace(device)
