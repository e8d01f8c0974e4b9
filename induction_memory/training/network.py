"""A whole pass of a micro-batch through the model, forward and backward, on the model's own parameters.

    x = w_E(z) + p
    block:     m = x + attention(norm(x))       y = m + feed(norm(m))        (parallel: m + feed(norm(x)))
    logits = norm(y) W_U

The last block answers only for the queries that are asked for; the blocks below it for every position. Backward stops
where nothing further down learns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.attention import causal_blocks, causal_mask
from induction_memory.training.attention_layer import Attended, AttentionLayer
from induction_memory.training.clamps import Clamps, clamped_pattern
from induction_memory.training.layers import (
    FeedForward,
    LayerNorm,
    LinearFeedForward,
    Normalized,
    ReluFeedForward,
)
from induction_memory.training.lookup import Table, add_by_row, look_up
from induction_memory.training.queries import Piece, Queries
from induction_memory.training.readout import cross_entropy, in_bits
from induction_memory.training.sums import Sums
from induction_memory.training.workspace import Workspace


@dataclass(frozen=True)
class Passed:
    """What a block's backward needs."""

    queries: Queries
    attended: Attended
    feed_in: Tensor
    norm1: Normalized | None
    norm2: Normalized | None


class Block:
    """One layer: attention, then a feed-forward if it has one."""

    def __init__(
        self,
        layer: int,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        trained: frozenset[str],
        eps: float,
        embedded: Table,
    ) -> None:
        self.layer = layer
        self.parallel = config.parallel_blocks
        prefix = f"blocks.{layer}"
        self.norm1 = _layer_norm(f"{prefix}.ln1", parameters, trained, eps) if config.layer_norm else None
        self.norm2: LayerNorm | None = None
        self.feed: FeedForward | None = None
        if config.has_feed_forward(layer + 1):
            self.feed = _feed_forward(f"{prefix}.mlp", config, parameters, trained)
            if config.layer_norm:
                self.norm2 = _layer_norm(f"{prefix}.ln2", parameters, trained, eps)
        below = {"embed.W_E", "pos_embed.W_pos"}
        below |= {name for name in parameters if name.startswith(tuple(f"blocks.{i}." for i in range(layer)))}
        self.input_wanted = not trained.isdisjoint(below)
        norm1_learns = self.norm1 is not None and any(self.norm1.trained)
        self.attention = AttentionLayer(
            layer,
            config,
            parameters,
            trained,
            embedded if layer == 0 and self.norm1 is None else None,
            self.input_wanted or norm1_learns,
        )
        self.middle_wanted = self.input_wanted or norm1_learns or self.attention.learns
        norm2_learns = self.norm2 is not None and any(self.norm2.trained)
        feed_input = self.input_wanted if self.parallel else self.middle_wanted
        self.feed_input_wanted = feed_input or norm2_learns
        own = tuple(name for name in trained if name.startswith(f"{prefix}."))
        self.wanted = self.input_wanted or bool(own)
        """Whether there is anything to do backward from this block's output."""

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        pattern: Float[Tensor, "batch query key"] | None,
        buffers: Workspace,
    ) -> tuple[Float[Tensor, "batch query d_model"], Passed]:
        a, norm1 = (x, None) if self.norm1 is None else self.norm1.forward(x)
        x_queries, a_queries = queries.choose(x), queries.choose(a)
        middle = buffers(f"{self.layer}.middle", *x_queries.shape).copy_(x_queries)
        attended = self.attention.forward(a, a_queries, tokens, queries, pattern, middle, buffers)
        if self.feed is None:
            return middle, Passed(queries, attended, middle, norm1, None)
        y = buffers(f"{self.layer}.y", *middle.shape).copy_(middle)
        feed_in, norm2 = x_queries if self.parallel else middle, None
        if self.norm2 is not None:
            feed_in, norm2 = self.norm2.forward(feed_in)
        self.feed.forward(feed_in.flatten(0, 1), y.flatten(0, 1), buffers)
        return y, Passed(queries, attended, feed_in, norm1, norm2)

    def backward(
        self,
        dy: Float[Tensor, "batch query d_model"],
        saved: Passed,
        tokens: Int[Tensor, "batch pos"],
        buffers: Workspace,
        sums: Sums,
    ) -> Float[Tensor, "batch pos d_model"] | None:
        """Sum the parameters' gradients; that of the block's input, if it is wanted. `dy` is overwritten."""
        residual = dy
        if self.feed is not None:
            flat = saved.feed_in.flatten(0, 1)
            dfeed = self.feed.backward(dy.flatten(0, 1), flat, buffers, sums, self.feed_input_wanted)
            if dfeed is not None:
                dfeed = dfeed.view_as(dy)
                if self.norm2 is not None and saved.norm2 is not None:
                    dfeed = self.norm2.backward(dfeed, saved.norm2, sums)
                if self.parallel:
                    residual = dfeed.add_(dy)
                else:
                    dy.add_(dfeed)
        if not self.middle_wanted:
            return None
        everywhere = saved.queries.positions is None
        inputs = saved.attended.inputs
        if self.norm1 is None:
            if not self.input_wanted:
                self._attention_backward(dy, saved, tokens, None, None, buffers, sums)
                return None
            if everywhere:
                self._attention_backward(dy, saved, tokens, residual, residual, buffers, sums)
                return residual
            dx = buffers("dx", *inputs.shape).zero_()
            self._attention_backward(dy, saved, tokens, dx, residual, buffers, sums)
            saved.queries.add_back(dx, residual)
            return dx
        if not self.attention.inputs_wanted:
            self._attention_backward(dy, saved, tokens, None, None, buffers, sums)
            return None
        da = buffers("da", *inputs.shape).zero_()
        if everywhere:
            self._attention_backward(dy, saved, tokens, da, da, buffers, sums)
        else:
            da_queries = buffers("da_queries", *dy.shape).zero_()
            self._attention_backward(dy, saved, tokens, da, da_queries, buffers, sums)
            saved.queries.add_back(da, da_queries)
        assert saved.norm1 is not None
        dx = self.norm1.backward(da, saved.norm1, sums)
        if not self.input_wanted:
            return None
        saved.queries.add_back(dx, residual)
        return dx

    def _attention_backward(
        self,
        dy: Tensor,
        saved: Passed,
        tokens: Tensor,
        dx: Tensor | None,
        dx_queries: Tensor | None,
        buffers: Workspace,
        sums: Sums,
    ) -> None:
        self.attention.backward(dy, saved.attended, tokens, saved.queries, dx, dx_queries, buffers, sums)


class Network:
    """A model's weights, ready for one step."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        trained: frozenset[str],
        tied: bool,
        eps: float,
        pos: int,
        clamps: Clamps,
    ) -> None:
        self.trained = trained
        self.shapes = {name: parameters[name].shape for name in trained}
        self.tied = tied
        self.clamps = clamps
        W_E, W_pos = parameters["embed.W_E"], parameters["pos_embed.W_pos"]
        self.positions = W_pos.shape[0]
        self.embedded = Table(W_E, W_pos[:pos])
        self.blocks = [
            Block(layer, config, parameters, trained, eps, self.embedded) for layer in range(config.n_layers)
        ]
        self.norm = _layer_norm("ln_final", parameters, trained, eps) if config.layer_norm else None
        self.W_U = parameters["unembed.W_U"]
        self.W_U_bits = in_bits(self.W_U)
        self.mask = causal_mask(pos, W_E.device)
        self.everywhere = Queries(causal_blocks(self.mask), None, None)
        self.embeddings_learn = not trained.isdisjoint({"embed.W_E", "pos_embed.W_pos"})
        self.unembedding_learns = "unembed.W_U" in trained or (tied and "embed.W_E" in trained)

    def run(
        self,
        tokens: Int[Tensor, "batch pos"],
        targets: Int[Tensor, "batch query"],
        weights: Float[Tensor, "batch query"] | None,
        piece: Piece,
        buffers: Workspace,
        sums: Sums,
    ) -> tuple[Float[Tensor, "batch query"], Bool[Tensor, "batch query"]]:
        """-log p(target) and correctness at the piece's queries; with weights, add the gradients to the sums."""
        x = buffers("x", *tokens.shape, self.embedded.by_token.shape[1])
        look_up(self.embedded, tokens, None, x)
        passed = []
        for block in self.blocks:
            last = block.layer == len(self.blocks) - 1
            queries = piece.queries(self.mask) if last else self.everywhere
            x, saved = block.forward(x, tokens, queries, self._pattern(block.layer, tokens, queries), buffers)
            passed.append(saved)
        f, normalized = (x, None) if self.norm is None else self.norm.forward(x)
        rows = f.flatten(0, 1)
        logits = buffers("logits", rows.shape[0], self.W_U.shape[1])
        torch.mm(rows, self.W_U_bits, out=logits)
        flat_weights = None if weights is None else weights.flatten()
        nll, correct = cross_entropy(logits, targets.flatten(), flat_weights)
        if weights is not None:
            self._backward(logits, rows, normalized, passed, tokens, buffers, sums)
        return nll.view_as(targets), correct.view_as(targets)

    def _pattern(self, layer: int, tokens: Tensor, queries: Queries) -> Tensor | None:
        kind = self.clamps.kind(layer, len(self.blocks))
        return None if kind is None else queries.choose(clamped_pattern(kind, tokens))

    def _backward(
        self,
        dlogits: Tensor,
        rows: Tensor,
        normalized: Normalized | None,
        passed: list[Passed],
        tokens: Tensor,
        buffers: Workspace,
        sums: Sums,
    ) -> None:
        if self.unembedding_learns:
            sums("unembed.W_U", *self.W_U.shape).addmm_(rows.T, dlogits)
        norm_learns = self.norm is not None and any(self.norm.trained)
        if not (norm_learns or any(block.wanted for block in self.blocks) or self.embeddings_learn):
            return
        dx: Tensor | None = buffers("drows", *rows.shape)
        torch.mm(dlogits, self.W_U.T, out=dx)
        dx = dx.view(tokens.shape[0], -1, rows.shape[1])
        if self.norm is not None and normalized is not None:
            dx = self.norm.backward(dx, normalized, sums)
        for block, saved in zip(reversed(self.blocks), reversed(passed), strict=True):
            if dx is None or not block.wanted:
                return
            dx = block.backward(dx, saved, tokens, buffers, sums)
        if dx is not None:
            add_by_row(dx, tokens, None, sums, "x", *self._sizes)

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.embedded.by_token.shape[0], self.embedded.by_position.shape[0]

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """The gradients of all trained parameters, from the sums over the batch."""
        found: dict[str, Tensor] = {}
        for block in self.blocks:
            found |= block.attention.gradients(sums)
        if self.embeddings_learn:
            by_token, by_position = self._embedding_gradients(sums)
            W_pos = torch.zeros(self.positions, by_position.shape[1], device=by_position.device)
            W_pos[: by_position.shape[0]] = by_position
            found |= {"embed.W_E": by_token, "pos_embed.W_pos": W_pos}
        for name in self.trained - found.keys():
            found[name] = sums(name, *self.shapes[name])
        return {name: found[name] for name in self.trained}

    def _embedding_gradients(self, sums: Sums) -> tuple[Tensor, Tensor]:
        width = self.embedded.by_token.shape[1]
        vocab, pos = self._sizes
        by_token, by_position = sums("x.token", vocab, width), sums("x.position", pos, width)
        first = self.blocks[0].attention
        if first.embedded is not None:
            rest = first.embedding_gradients(sums)
            by_token, by_position = by_token + rest.by_token, by_position + rest.by_position
        if self.tied:
            by_token = by_token + sums("unembed.W_U", *self.W_U.shape).T
        return by_token, by_position


def _layer_norm(name: str, parameters: Mapping[str, Tensor], trained: frozenset[str], eps: float) -> LayerNorm:
    gamma, beta = f"{name}.w", f"{name}.b"
    return LayerNorm(name, parameters[gamma], parameters[beta], eps, (gamma in trained, beta in trained))


def _feed_forward(
    name: str, config: ModelConfig, parameters: Mapping[str, Tensor], trained: frozenset[str]
) -> FeedForward:
    if config.feed_forward == "linear":
        return LinearFeedForward(name, parameters[f"{name}.W_F"], f"{name}.W_F" in trained)
    W_in, W_out = f"{name}.W_in", f"{name}.W_out"
    return ReluFeedForward(name, parameters[W_in], parameters[W_out], (W_in in trained, W_out in trained))
