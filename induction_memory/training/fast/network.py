"""A whole pass of a micro-batch through the model, forward and backward, on the model's own parameters.

Blocks below the last compute every position. The last block and everything after it (the tail) compute only the
requested queries. The backward pass stops at the lowest block with something that learns.

In general the tail (`BlockTail`) is the last block, the final norm and the unembedding in sequence. Without norms, with
one head as wide as the model and a feed-forward that is linear or missing, the tail is linear in the block's input x at
the query and in the attention average P x (`LinearTail`):

    logits = x M + (P x) W_V W_O M,      M = (1 + W_F) W_U       (parallel blocks: x M + (P x) W_V W_O W_U)

so W_F costs nothing, and the maps are as narrow as the vocabulary. Adding the same number to all logits changes
nothing, so the last token's logit is subtracted from the others, and N - 1 columns are enough. If every position is a
query and the vocabulary is narrower than the model, values are mapped before P, otherwise after.

The loss is nll = log(sum exp(logits)) - logits[target], with dlogits = w (softmax(logits) - 1{target}), where w is the
weight of a row in the loss: one over the number of trained positions, or zero. As in attention, logits are computed in
bits, because powers of two are cheaper; a gradient with respect to bits is log 2 times dlogits.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.evaluation import Clamps, clamped_pattern
from induction_memory.training.fast.attention import LOG2_E, ProductScores, Table, average, backward, impose, weigh
from induction_memory.training.fast.block import EMBEDDINGS, Block, LayerNorm
from induction_memory.training.fast.micro_batches import (
    MicroBatch,
    Piece,
    Sums,
    Workspace,
    causal_blocks,
    causal_mask,
)

Found = tuple[Tensor, Tensor, Tensor | None]
"""-log p(target), correctness, and, if needed, the gradient of the last block's input."""


def cross_entropy(
    bits: Float[Tensor, "row vocab"],
    targets: Int[Tensor, " row"],
    weights: Float[Tensor, " row"] | None,
) -> tuple[Float[Tensor, " row"], Bool[Tensor, " row"]]:
    """-log p(target) and whether the target is the likeliest, from logits times log2 e.

    It overwrites the bits, with weights by the gradient of the weighted sum of nll.
    """
    correct = bits.argmax(-1) == targets
    bits.sub_(bits.amax(-1, keepdim=True))
    at_target = bits.gather(-1, targets[:, None])
    torch.exp2(bits, out=bits)
    total = bits.sum(-1, keepdim=True)
    nll = (total.log2() - at_target).mul_(math.log(2)).squeeze(-1)
    if weights is not None:
        weights = weights[:, None] * math.log(2)
        bits.mul_(weights / total)
        bits.scatter_add_(-1, targets[:, None], -weights)
    return nll, correct


@runtime_checkable
class Tail(Protocol):
    """The end of a network, from the last block's input to the loss."""

    def run(
        self,
        x: Float[Tensor, "batch pos d_model"],
        piece: Piece,
        pattern: Float[Tensor, "batch query key"] | None,
        targets: Int[Tensor, " row"],
        weights: Float[Tensor, " row"] | None,
    ) -> Found:
        """Predict the targets of all queries; with weights, add the gradients to the sums."""
        ...

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """Gradients of its trained parameters."""
        ...

    def unembedding_gradient(self, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        """dW_U, which belongs to the token embeddings if the output is tied."""
        ...


class BlockTail:
    """The last block, the final norm and the unembedding of any model."""

    def __init__(
        self,
        block: Block,
        norm: LayerNorm | None,
        W_U: Float[Tensor, "d_model vocab"],
        unembedding_learns: bool,
    ) -> None:
        self.block, self.norm, self.unembedding_learns = block, norm, unembedding_learns
        self.W_U_bits = W_U * LOG2_E
        self.output_wanted = block.wanted or (norm is not None and norm.learns)

    def run(
        self,
        x: Float[Tensor, "batch pos d_model"],
        piece: Piece,
        pattern: Float[Tensor, "batch query key"] | None,
        targets: Int[Tensor, " row"],
        weights: Float[Tensor, " row"] | None,
    ) -> Found:
        y, block_back = self.block.forward(x, piece, pattern)
        f, norm_back = (y, None) if self.norm is None else self.norm.forward(y, piece)
        rows = f.flatten(0, 1)
        bits = torch.mm(rows, self.W_U_bits, out=piece.buffers("bits", len(rows), self.W_U_bits.shape[1]))
        nll, correct = cross_entropy(bits, targets, weights)
        if weights is None:
            return nll, correct, None
        if self.unembedding_learns:
            piece.sums("unembed.W_U", *self.W_U_bits.shape).addmm_(rows.T, bits)
        if not self.output_wanted:
            return nll, correct, None
        dy = torch.mm(bits, self.W_U_bits.T, out=piece.buffers("drows", *rows.shape)).view_as(y)
        if norm_back is not None:
            dy = norm_back(dy)
        return nll, correct, block_back(dy) if self.block.wanted else None

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        return self.block.attention.gradients(sums)

    def unembedding_gradient(self, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        return sums("unembed.W_U", *self.W_U_bits.shape) * LOG2_E


class LinearTail:
    """The last block and the unembedding where they are linear."""

    def __init__(
        self, block: Block, parameters: Mapping[str, Tensor], trained: frozenset[str], unembedding_learns: bool
    ) -> None:
        self.attention, self.parallel, self.input_wanted = block.attention, block.parallel, block.input_wanted
        self.W_U = parameters["unembed.W_U"]
        self.feed_name = "" if block.feed is None else block.feed.last
        self.W_F = parameters.get(self.feed_name)
        self.feed_learns = self.feed_name in trained
        fed = self.W_U if self.W_F is None else self.W_U + self.W_F @ self.W_U
        self.attended_map = self.W_U if self.parallel else fed
        self.W, self.Phi = self.attention.maps["q"], self.attention.maps["o"]
        self.M = _narrow(fed) * LOG2_E
        self.N = self.Phi @ _narrow(self.attended_map) * LOG2_E
        self.M_wanted = self.feed_learns or unembedding_learns
        self.N_wanted = self.M_wanted or "o" in self.attention.learning
        self.q_wanted = self.input_wanted or "q" in self.attention.learning

    def run(
        self,
        x: Float[Tensor, "batch pos d_model"],
        piece: Piece,
        pattern: Float[Tensor, "batch query key"] | None,
        targets: Int[Tensor, " row"],
        weights: Float[Tensor, " row"] | None,
    ) -> Found:
        buffers, width, x_queries = piece.buffers, self.M.shape[1], piece.choose(x)
        shape, rows = x_queries.shape[:2], x_queries.flatten(0, 1)
        q = torch.mm(rows, self.W, out=buffers("tail.q", *rows.shape)).view(*shape, -1)
        P = weigh(ProductScores(q, x), piece, "tail") if pattern is None else impose(pattern, piece)
        v, mapped = x, piece.positions is None and width < x.shape[2]
        if mapped:
            v = torch.mm(x.flatten(0, 1), self.N, out=buffers("tail.v", x.shape[0] * x.shape[1], width))
            v = v.view(*x.shape[:2], width)
        o = buffers("tail.o", *shape, v.shape[2])
        average(P, v, o, piece)
        bits = buffers("bits", len(rows), width + 1)
        bits[:, width] = 0
        logits = bits[:, :width]
        if mapped:
            torch.addmm(o.flatten(0, 1), rows, self.M, out=logits)
        else:
            torch.mm(rows, self.M, out=logits)
            logits.addmm_(o.flatten(0, 1), self.N)
        nll, correct = cross_entropy(bits, targets, weights)
        if weights is None:
            return nll, correct, None

        sums, dlogits = piece.sums, bits[:, :-1]
        if self.M_wanted:
            sums("tail.M", *self.M.shape).addmm_(rows.T, dlogits)
        dx = dx_queries = None
        if self.input_wanted:
            dx_queries = torch.mm(dlogits, self.M.T, out=buffers("tail.dx_queries", *rows.shape)).view(*shape, -1)
            dx = dx_queries if piece.positions is None else buffers("tail.dx", *x.shape).zero_()
        dq = buffers("tail.dq", *q.shape) if self.q_wanted and pattern is None else None
        scores = None if dq is None else ProductScores(q, x, dq, dx)
        if mapped:
            do = dlogits.view(*shape, -1)
            dv = buffers("tail.dv", *v.shape).zero_() if self.N_wanted or self.input_wanted else None
        else:
            if self.N_wanted:
                sums("tail.N", *self.N.shape).addmm_(o.flatten(0, 1).T, dlogits)
            do = torch.mm(dlogits, self.N.T, out=buffers("tail.do", *rows.shape)).view(*shape, -1)
            dv = dx
        if scores is not None or dv is not None:
            backward(P, do, v, piece, scores=scores, add_dv=dv)
        if mapped and dv is not None:
            if self.N_wanted:
                sums("tail.N", *self.N.shape).addmm_(x.flatten(0, 1).T, dv.flatten(0, 1))
            if dx is not None:
                dx.flatten(0, 1).addmm_(dv.flatten(0, 1), self.N.T)
        if dq is not None:
            sums(f"{self.attention.prefix}.q", *self.W.shape).addmm_(rows.T, dq.flatten(0, 1))
            if dx_queries is not None:
                dx_queries.flatten(0, 1).addmm_(dq.flatten(0, 1), self.W.T)
        if dx is not None and dx_queries is not None and piece.positions is not None:
            piece.add_back(dx, dx_queries)
        return nll, correct, dx

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        dN = self._gradient("tail.N", sums)
        sums(f"{self.attention.prefix}.o", *self.Phi.shape).copy_(dN @ self.attended_map.T)
        found = self.attention.gradients(sums)
        if self.feed_learns:
            fed, _ = self._map_gradients(sums)
            found[self.feed_name] = fed @ self.W_U.T
        return found

    def unembedding_gradient(self, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        fed, direct = self._map_gradients(sums)
        return fed + direct if self.W_F is None else fed + self.W_F.T @ fed + direct

    def _map_gradients(self, sums: Sums) -> tuple[Tensor, Tensor]:
        """Gradients of (1 + W_F) W_U, and of W_U where it is used alone."""
        dM, attended = self._gradient("tail.M", sums), self.Phi.T @ self._gradient("tail.N", sums)
        return (dM, attended) if self.parallel else (dM + attended, torch.zeros_like(dM))

    def _gradient(self, name: str, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        """The gradient of a map, from the gradient of its narrow form (`_narrow`)."""
        narrow = sums(name, *self.M.shape) * LOG2_E
        return torch.cat([narrow, -narrow.sum(1, keepdim=True)], dim=1)


def _narrow(M: Float[Tensor, "d_model vocab"]) -> Float[Tensor, "d_model less"]:
    """All columns except the last, each minus the last."""
    return M[:, :-1] - M[:, -1:]


class Network:
    """A model's weights, ready for one step."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        names: Sequence[str],
        tied: bool,
        eps: float,
        pos: int,
        clamps: Clamps,
    ) -> None:
        """`names` are the parameters that learn."""
        trained = frozenset(names)
        W_E, W_pos, W_U = parameters["embed.W_E"], parameters["pos_embed.W_pos"], parameters["unembed.W_U"]
        self.trained, self.tied = trained, tied
        self.names, self.parameters = names, parameters
        self.embedded = Table(W_E, W_pos[:pos])
        self.mask = causal_mask(pos, W_E.device)
        self.everywhere = causal_blocks(self.mask)
        self.layers: list[Block] = []
        self.imposed: list[str | None] = []
        wanted = bool(trained & EMBEDDINGS)
        for layer in range(config.n_layers):
            blocks = self.everywhere if layer < config.n_layers - 1 else None
            self.layers.append(Block(layer, config, parameters, trained, eps, self.embedded, blocks, wanted))
            wanted = self.layers[-1].wanted
            self.imposed.append(clamps.kind(layer, config.n_layers))
        unembedding_learns = "unembed.W_U" in trained or (tied and "embed.W_E" in trained)
        linear = config.feed_forward in ("none", "linear") and not config.layer_norm and config.n_layers > 1
        if linear and self.layers[-1].attention.folded:
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
        """The clamped pattern of a layer, at its queries."""
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
        return {n: found[n] if n in found else sums(n, *self.parameters[n].shape) for n in self.names}

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
        W_pos = torch.zeros_like(self.parameters["pos_embed.W_pos"])
        W_pos[: len(by_position)] = by_position
        return {"embed.W_E": by_token, "pos_embed.W_pos": W_pos}
