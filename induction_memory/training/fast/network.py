"""A whole pass of a micro-batch through the model, forward and backward, on the model's own parameters.

Blocks below the last compute every position. The last block, with all that follows it (`last_block.py`), computes only
the requested queries. Backward stops at the lowest block that it needs: below it nothing learns.
"""

from collections.abc import Mapping

from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.clamps import Clamps, clamped_pattern
from induction_memory.training.fast.attention import Table
from induction_memory.training.fast.block import EMBEDDINGS, Block, LayerNorm
from induction_memory.training.fast.last_block import BlockTail, LinearTail, Tail
from induction_memory.training.fast.micro_batches import (
    MicroBatch,
    Piece,
    Sums,
    Workspace,
    causal_blocks,
    causal_mask,
)


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
        W_E, W_pos, W_U = parameters["embed.W_E"], parameters["pos_embed.W_pos"], parameters["unembed.W_U"]
        self.trained, self.tied = trained, tied
        self.shapes = {name: parameters[name].shape for name in names}
        self.embedded = Table(W_E, W_pos[:pos])
        self.mask = causal_mask(pos, W_E.device)
        self.everywhere = causal_blocks(self.mask)
        self.layers: list[Block] = []
        self.imposed: list[str | None] = []
        for layer in range(config.n_layers):
            blocks = self.everywhere if layer < config.n_layers - 1 else None
            self.layers.append(Block(layer, config, parameters, trained, eps, self.embedded, blocks))
            self.imposed.append(clamps.kind(layer, config.n_layers))
        unembedding_learns = "unembed.W_U" in trained or (tied and "embed.W_E" in trained)
        if LinearTail.fits(config):
            self.tail: Tail = LinearTail(self.layers[-1], parameters, trained, unembedding_learns)
        else:
            norm = LayerNorm("ln_final", parameters, trained, eps) if config.layer_norm else None
            self.tail = BlockTail(self.layers[-1], norm, W_U, unembedding_learns)

    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        targets: Int[Tensor, "batch query"],
        weights: Float[Tensor, "batch query"] | None,
        micro_batch: MicroBatch,
        buffers: Workspace,
        sums: Sums,
    ) -> tuple[Float[Tensor, "batch query"], Bool[Tensor, "batch query"]]:
        """-log p(target) and correctness at the queries; with weights, add the gradients to the sums."""
        whole = Piece(tokens, self.everywhere, buffers, sums)
        x = buffers("x", *tokens.shape, self.embedded.by_token.shape[1])
        self.embedded.look_up(tokens, None, x)
        way_back = []
        for layer, block in enumerate(self.layers[:-1]):
            x, back = block.forward(x, whole, self._pattern(layer, whole))
            way_back.append(back)
        last = micro_batch.chosen(whole, self.mask)
        row_weights = None if weights is None else weights.flatten()
        nll, correct, dx = self.tail.run(x, last, self._pattern(-1, last), targets.flatten(), row_weights)
        while dx is not None and way_back:
            dx = way_back.pop()(dx)
        if dx is not None:
            self.embedded.add_gradient(dx, tokens, None, sums, "x")
        return nll.view_as(targets), correct.view_as(targets)

    def _pattern(self, layer: int, piece: Piece) -> Float[Tensor, "batch query key"] | None:
        """The pattern imposed on a layer, at its queries."""
        kind = self.imposed[layer]
        return None if kind is None else piece.choose(clamped_pattern(kind, piece.tokens))

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """The gradients of all trained parameters, from the sums over the batch."""
        found = self.tail.gradients(sums)
        for block in self.layers[:-1]:
            found |= block.attention.gradients(sums)
        if self.trained & EMBEDDINGS:
            found |= self._embedding_gradients(sums)
        if "unembed.W_U" in self.trained:
            found["unembed.W_U"] = self.tail.unembedding_gradient(sums)
        return {name: found[name] if name in found else sums(name, *shape) for name, shape in self.shapes.items()}

    def _embedding_gradients(self, sums: Sums) -> dict[str, Tensor]:
        total, first = self.embedded.gradient(sums, "x"), self.layers[0].attention
        by_token, by_position = total.by_token, total.by_position
        if first.embedded is not None:
            rest = first.embedding_gradients(sums)
            by_token, by_position = by_token + rest.by_token, by_position + rest.by_position
        if self.tied:
            by_token = by_token + self.tail.unembedding_gradient(sums).T
        if "pos_embed.W_pos" not in self.trained:
            return {"embed.W_E": by_token}
        W_pos = by_position.new_zeros(self.shapes["pos_embed.W_pos"])
        W_pos[: len(by_position)] = by_position
        return {"embed.W_E": by_token, "pos_embed.W_pos": W_pos}
