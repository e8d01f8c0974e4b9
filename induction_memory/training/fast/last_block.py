"""From the input of the last block to the loss, and back.

In general (`BlockTail`) that is the last block, the final norm and the unembedding, one after the other. Without norms,
with one head as wide as the model and a feed-forward that is linear or missing, all of it is linear in the input x of
the block at the query and in the attention's average (`LinearTail`):

    logits = x M + (P x) W_V W_O M,      M = (1 + W_F) W_U       (parallel blocks: x M + (P x) W_V W_O W_U)

so that W_F costs nothing, and the maps are as narrow as the vocabulary. One column can be saved: adding the same number
to all logits changes nothing, so the logit of the last token is subtracted from the others, and N - 1 columns are
enough. If every position is a query and the vocabulary is narrower than the model, values are mapped before P,
otherwise after.

Logits to loss and back.

    nll = log(sum exp(logits)) - logits[target]        dlogits = w (softmax(logits) - 1{target})

where w is the weight of a row in the loss: one over the number of trained positions, or zero. As in attention, logits
are computed in bits, because powers of two are cheaper; a gradient with respect to bits is log 2 times dlogits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention import (
    LOG2_E,
    ProductScores,
    Weighting,
    backward,
    impose,
    weigh,
    write_average,
)
from induction_memory.training.fast.attention_layer import AttentionMaps
from induction_memory.training.fast.block import Block, LayerNorm, learns_below
from induction_memory.training.fast.queries import Queries
from induction_memory.training.fast.workspace import Sums, Workspace


def cross_entropy(
    bits: Float[Tensor, "row vocab"],
    targets: Int[Tensor, " row"],
    weights: Float[Tensor, " row"] | None,
) -> tuple[Float[Tensor, " row"], Bool[Tensor, " row"]]:
    """-log p(target) and whether the target is the likeliest, from logits times log2 e.

    The bits are overwritten; if weights are given, with the gradient of the weighted sum of nll.
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


Found = tuple[Tensor, Tensor, Tensor | None]
"""-log p(target), correctness, and the gradient of the last block's input."""


@runtime_checkable
class Tail(Protocol):
    """The end of a network, from the last block's input to the loss."""

    def run(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        pattern: Float[Tensor, "batch query key"] | None,
        targets: Int[Tensor, " row"],
        weights: Float[Tensor, " row"] | None,
        buffers: Workspace,
        sums: Sums,
    ) -> Found:
        """Predict the targets of all queries; with weights, add the gradients to the sums."""
        ...

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        """Gradients of the trained parameters it holds."""
        ...

    def unembedding_gradient(self, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        """dW_U, which a tied output gives to the token embeddings."""
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
        self.block = block
        self.norm = norm
        self.W_U_bits = W_U * LOG2_E
        self.unembedding_learns = unembedding_learns
        norm_learns = norm is not None and any(norm.trained)
        self.output_wanted = block.wanted or norm_learns

    def run(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        pattern: Float[Tensor, "batch query key"] | None,
        targets: Int[Tensor, " row"],
        weights: Float[Tensor, " row"] | None,
        buffers: Workspace,
        sums: Sums,
    ) -> Found:
        y, passed = self.block.forward(x, tokens, queries, pattern, buffers, sums)
        f, normalized = (y, None) if self.norm is None else self.norm.forward(y)
        rows = f.flatten(0, 1)
        bits = torch.mm(rows, self.W_U_bits, out=buffers("bits", len(rows), self.W_U_bits.shape[1]))
        nll, correct = cross_entropy(bits, targets, weights)
        if weights is None:
            return nll, correct, None
        if self.unembedding_learns:
            sums("unembed.W_U", *self.W_U_bits.shape).addmm_(rows.T, bits)
        if not self.output_wanted:
            return nll, correct, None
        dy = torch.mm(bits, self.W_U_bits.T, out=buffers("drows", *rows.shape)).view_as(y)
        if self.norm is not None and normalized is not None:
            dy = self.norm.backward(dy, normalized, sums)
        if not self.block.wanted:
            return nll, correct, None
        return nll, correct, self.block.backward(dy, passed, tokens, buffers, sums)

    def gradients(self, sums: Sums) -> dict[str, Tensor]:
        return self.block.maps.gradients(sums)

    def unembedding_gradient(self, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        return sums("unembed.W_U", *self.W_U_bits.shape) * LOG2_E


@dataclass(frozen=True)
class _Attended:
    """What the backward of a `LinearTail` needs."""

    x: Tensor
    q: Tensor
    rows: Tensor
    """x at the queries."""
    weighting: Weighting
    v: Tensor
    o: Tensor
    """P v."""
    mapped: bool
    """Whether v is x mapped to the vocabulary; otherwise v is x itself."""


class LinearTail:
    """The last block and the unembedding where they are linear."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        trained: frozenset[str],
        unembedding_learns: bool,
    ) -> None:
        layer = config.n_layers - 1
        self.input_wanted = learns_below(layer, trained)
        self.attention = AttentionMaps(layer, config, parameters, trained, None, self.input_wanted, False)
        self.feed_name = f"blocks.{layer}.mlp.W_F"
        self.parallel = config.parallel_blocks
        self.W_U = parameters["unembed.W_U"]
        self.W_F = parameters.get(self.feed_name)
        self.feed_learns = self.feed_name in trained
        self.unembedding_learns = unembedding_learns
        fed = self.W_U if self.W_F is None else self.W_U + self.W_F @ self.W_U
        self.attended_map = self.W_U if self.parallel else fed
        self.W = self.attention.maps["q"]
        self.Phi = self.attention.maps["o"]
        self.M = _narrow(fed) * LOG2_E
        self.N = self.Phi @ _narrow(self.attended_map) * LOG2_E
        self.M_wanted = self.feed_learns or unembedding_learns
        self.N_wanted = self.M_wanted or self.attention.learns("o")
        self.q_wanted = self.attention.wanted("q")

    @staticmethod
    def fits(config: ModelConfig) -> bool:
        """Whether a model ends linearly."""
        linear = config.feed_forward in ("none", "linear") and not config.layer_norm and config.n_layers > 1
        return linear and config.n_heads == 1 and config.head_dimension >= config.d_model

    def run(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        pattern: Float[Tensor, "batch query key"] | None,
        targets: Int[Tensor, " row"],
        weights: Float[Tensor, " row"] | None,
        buffers: Workspace,
        sums: Sums,
    ) -> Found:
        x_queries = queries.choose(x)
        shape, rows = x_queries.shape[:2], x_queries.flatten(0, 1)
        q = torch.mm(rows, self.W, out=buffers("tail.q", *rows.shape)).view(*shape, -1)
        if pattern is None:
            weighting = weigh(ProductScores(q, x), len(x), queries.blocks, buffers, "tail")
        else:
            weighting = impose(pattern, queries.blocks)
        passed = _Attended(x, q, rows, weighting, *self._average(x, shape, queries, weighting, buffers))
        bits = self._logits(passed, buffers)
        nll, correct = cross_entropy(bits, targets, weights)
        if weights is None:
            return nll, correct, None
        return nll, correct, self._backward(bits[:, :-1], passed, queries, buffers, sums)

    def _average(
        self, x: Tensor, shape: torch.Size, queries: Queries, weighting: Weighting, buffers: Workspace
    ) -> tuple[Tensor, Tensor, bool]:
        """Values, their average under the pattern, and whether values are mapped to the vocabulary before it."""
        width = self.M.shape[1]
        mapped = queries.positions is None and width < x.shape[2]
        v = x
        if mapped:
            v = torch.mm(x.flatten(0, 1), self.N, out=buffers("tail.v", x.shape[0] * x.shape[1], width))
            v = v.view(*x.shape[:2], width)
        o = buffers("tail.o", *shape, v.shape[2])
        write_average(weighting, v, o)
        return v, o, mapped

    def _logits(self, passed: "_Attended", buffers: Workspace) -> Float[Tensor, "row vocab"]:
        """The logits in bits, with 0 for the last token."""
        width = self.M.shape[1]
        bits = buffers("bits", len(passed.rows), width + 1)
        bits[:, width] = 0
        out, o = bits[:, :width], passed.o.flatten(0, 1)
        if passed.mapped:
            torch.addmm(o, passed.rows, self.M, out=out)
        else:
            torch.mm(passed.rows, self.M, out=out)
            out.addmm_(o, self.N)
        return bits

    def _backward(
        self, dlogits: Float[Tensor, "row less"], passed: "_Attended", queries: Queries, buffers: Workspace, sums: Sums
    ) -> Tensor | None:
        """Sum the gradients of the maps; return that of the input, if it is needed."""
        x, rows, shape = passed.x, passed.rows, passed.q.shape[:2]
        if self.M_wanted:
            sums("tail.M", *self.M.shape).addmm_(rows.T, dlogits)
        dx = dx_queries = None
        if self.input_wanted:
            dx_queries = torch.mm(dlogits, self.M.T, out=buffers("tail.dx_queries", *rows.shape)).view(*shape, -1)
            dx = dx_queries if queries.positions is None else buffers("tail.dx", *x.shape).zero_()
        dq = buffers("tail.dq", *passed.q.shape) if self.q_wanted and not passed.weighting.imposed else None
        self._attention_backward(dlogits, passed, dq, dx, buffers, sums)
        if dq is not None:
            sums(f"{self.attention.prefix}.q", *self.W.shape).addmm_(rows.T, dq.flatten(0, 1))
            if dx_queries is not None:
                dx_queries.flatten(0, 1).addmm_(dq.flatten(0, 1), self.W.T)
        if dx is not None and dx_queries is not None and queries.positions is not None:
            queries.add_back(dx, dx_queries)
        return dx

    def _attention_backward(
        self,
        dlogits: Float[Tensor, "row less"],
        passed: "_Attended",
        dq: Tensor | None,
        dx: Tensor | None,
        buffers: Workspace,
        sums: Sums,
    ) -> None:
        """Sum dN, write dq and add to dx, as far as they are given."""
        x, v, o, shape = passed.x, passed.v, passed.o, passed.q.shape[:2]
        if passed.mapped:
            do = dlogits.view(*shape, -1)
            dv = buffers("tail.dv", *v.shape).zero_() if self.N_wanted or self.input_wanted else None
        else:
            if self.N_wanted:
                sums("tail.N", *self.N.shape).addmm_(o.flatten(0, 1).T, dlogits)
            do = torch.mm(dlogits, self.N.T, out=buffers("tail.do", *passed.rows.shape)).view(*shape, -1)
            dv = dx
        scores = None if dq is None else ProductScores(passed.q, x, dq, dx)
        if scores is not None or dv is not None:
            backward(passed.weighting, do, v, buffers, scores=scores, add_dv=dv)
        if passed.mapped and dv is not None:
            if self.N_wanted:
                sums("tail.N", *self.N.shape).addmm_(x.flatten(0, 1).T, dv.flatten(0, 1))
            if dx is not None:
                dx.flatten(0, 1).addmm_(dv.flatten(0, 1), self.N.T)

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
        """Gradients of (1 + W_F) W_U, and of W_U where it stands alone."""
        dM, attended = self._gradient("tail.M", sums), self.Phi.T @ self._gradient("tail.N", sums)
        return (dM, attended) if self.parallel else (dM + attended, torch.zeros_like(dM))

    def _gradient(self, name: str, sums: Sums) -> Float[Tensor, "d_model vocab"]:
        """The gradient of a map, from that of its narrow form (`_narrow`)."""
        narrow = sums(name, *self.M.shape) * LOG2_E
        return torch.cat([narrow, -narrow.sum(1, keepdim=True)], dim=1)


def _narrow(M: Float[Tensor, "d_model vocab"]) -> Float[Tensor, "d_model less"]:
    """All columns except the last, minus the last."""
    return M[:, :-1] - M[:, -1:]
