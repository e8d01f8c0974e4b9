"""One block of the model, forward and backward.

    m = x + attention(norm(x))        y = m + feed(norm(m))        (parallel: m + feed(norm(x)))

Attention computes outputs only at the requested queries, and y has one row per query. The other parts act on each
position alone, on rows x [row, d_model]:

LayerNorm         y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
linear            y = x W_F                    dx = dy W_F^T                  dW_F = x^T dy
ReLU              y = relu(x W_in) W_out       dh = (dy W_out^T) 1{h > 0}     dW_out = h^T dy,  dW_in = x^T dh

Each forward pass returns its output and the function for the backward pass.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention import Table
from induction_memory.training.fast.attention_layer import AttentionLayer
from induction_memory.training.fast.micro_batches import Piece, QueryBlock

EMBEDDINGS = frozenset({"embed.W_E", "pos_embed.W_pos"})
Back = Callable[[Tensor], Tensor | None]
"""The backward pass: from the output's gradient to the input's, if needed; adds the parameters' gradients to the
sums."""


class LayerNorm:
    """One LayerNorm; `name` is its parameters' prefix."""

    def __init__(self, name: str, parameters: Mapping[str, Tensor], trained: frozenset[str], eps: float) -> None:
        self.names = f"{name}.w", f"{name}.b"
        self.gamma, self.beta = (parameters[name] for name in self.names)
        self.trained = tuple(name in trained for name in self.names)
        self.learns, self.eps = any(self.trained), eps

    def forward(
        self, x: Float[Tensor, "*row d_model"], piece: Piece
    ) -> tuple[Float[Tensor, "*row d_model"], Callable[[Tensor], Tensor]]:
        y, mean, inverse = torch.native_layer_norm(x, [x.shape[-1]], self.gamma, self.beta, self.eps)

        def back(dy: Tensor) -> Tensor:
            wanted = [True, *self.trained]
            dx, *found = torch.ops.aten.native_layer_norm_backward(
                dy, x, [x.shape[-1]], mean, inverse, self.gamma, self.beta, wanted
            )
            for name, trained, gradient in zip(self.names, self.trained, found, strict=True):
                if trained:
                    piece.sums(name, x.shape[-1]).add_(gradient)
            return dx

        return y, back


class FeedForward:
    """x W_F, or relu(x W_in) W_out; without W_in, the hidden layer h is x. A norm may precede it."""

    def __init__(
        self, name: str, parameters: Mapping[str, Tensor], trained: frozenset[str], norm: LayerNorm | None
    ) -> None:
        """`name` is the parameters' prefix."""
        self.name, self.norm = name, norm
        self.W_in = parameters.get(f"{name}.W_in")
        self.last = f"{name}.W_F" if self.W_in is None else f"{name}.W_out"
        self.W_last = parameters[self.last]
        self.in_learns, self.last_learns = f"{name}.W_in" in trained, self.last in trained
        self.norm_learns = norm is not None and norm.learns
        self.learns = self.in_learns or self.last_learns or self.norm_learns

    def forward(
        self, x: Float[Tensor, "batch query d_model"], residual: Float[Tensor, "batch query d_model"], piece: Piece
    ) -> tuple[Float[Tensor, "batch query d_model"], Callable[[Tensor, bool], Tensor | None]]:
        """residual + the feed-forward of x, and the backward pass, whose second argument says whether dx is needed."""
        buffers, sums, W_in = piece.buffers, piece.sums, self.W_in
        normed, norm_back = (x, None) if self.norm is None else self.norm.forward(x, piece)
        rows = h = normed.flatten(0, 1)
        if W_in is not None:
            h = torch.mm(rows, W_in, out=buffers(f"{self.name}.hidden", len(rows), W_in.shape[1])).relu_()

        def back(dout: Tensor, wanted: bool) -> Tensor | None:
            dy, wanted = dout.flatten(0, 1), wanted or self.norm_learns
            if self.last_learns:
                sums(self.last, *self.W_last.shape).addmm_(h.T, dy)
            if not self.in_learns and not wanted:
                return None
            dx = buffers(f"{self.name}.dx", *rows.shape)
            if W_in is None:
                torch.mm(dy, self.W_last.T, out=dx)
            else:
                dh = torch.mm(dy, self.W_last.T, out=buffers("dhidden", *h.shape))
                torch.ops.aten.threshold_backward.grad_input(dh, h, 0, grad_input=dh)
                if self.in_learns:
                    sums(f"{self.name}.W_in", *W_in.shape).addmm_(rows.T, dh)
                if not wanted:
                    return None
                torch.mm(dh, W_in.T, out=dx)
            return dx.view_as(dout) if norm_back is None else norm_back(dx.view_as(dout))

        y = torch.addmm(residual.flatten(0, 1), h, self.W_last, out=buffers(f"{self.name}.y", *rows.shape))
        return y.view_as(residual), back


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
        blocks: tuple[QueryBlock, ...] | None,
        input_wanted: bool,
    ) -> None:
        """`embedded` has the embeddings; `blocks` are the query blocks if every position is a query. `input_wanted`:
        the input's gradient is needed, because something below learns.
        """
        prefix, feeds = f"blocks.{layer}", config.has_feed_forward(layer + 1)
        self.middle_name = f"{layer}.middle"
        self.parallel = config.parallel_blocks
        self.norm1 = LayerNorm(f"{prefix}.ln1", parameters, trained, eps) if config.layer_norm else None
        norm2 = LayerNorm(f"{prefix}.ln2", parameters, trained, eps) if config.layer_norm and feeds else None
        self.feed = FeedForward(f"{prefix}.mlp", parameters, trained, norm2) if feeds else None
        self.input_wanted = input_wanted
        self.attention = AttentionLayer(
            layer,
            config,
            parameters,
            trained,
            embedded if layer == 0 and self.norm1 is None else None,
            self.input_wanted or (self.norm1 is not None and self.norm1.learns),
            blocks,
        )
        self.middle_wanted = self.attention.inputs_wanted or bool(self.attention.trained)
        self.feed_input_wanted = self.input_wanted if self.parallel else self.middle_wanted
        self.wanted = self.middle_wanted or (self.feed is not None and self.feed.learns)
        """Whether this block's output needs a backward pass."""

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        piece: Piece,
        pattern: Float[Tensor, "batch query key"] | None,
    ) -> tuple[Float[Tensor, "batch query d_model"], Back]:
        """The backward pass overwrites the gradient that it receives."""
        a, norm_back = (x, None) if self.norm1 is None else self.norm1.forward(x, piece)
        x_queries = piece.choose(x)
        a_queries = x_queries if self.norm1 is None else piece.choose(a)
        middle = piece.buffers(self.middle_name, *x_queries.shape)
        attention_back = self.attention.forward(a, a_queries, piece, pattern, x_queries, middle)
        y, feed_back = middle, None
        if self.feed is not None:
            y, feed_back = self.feed.forward(x_queries if self.parallel else middle, middle, piece)
        everywhere = piece.positions is None

        def back(dy: Tensor) -> Tensor | None:
            residual = dy  # the gradient of x along the residual stream, which differs from dm in parallel blocks
            dfeed = None if feed_back is None else feed_back(dy, self.feed_input_wanted)
            if dfeed is not None:
                residual = dfeed.add_(dy) if self.parallel else dy.add_(dfeed)
            if not self.middle_wanted:
                return None
            if not self.attention.inputs_wanted:
                attention_back(dy, None, None)
                return None
            if norm_back is None and everywhere:
                attention_back(dy, residual, residual)
                return residual
            if norm_back is None:
                dx = piece.buffers("dx", *x.shape).zero_()
                attention_back(dy, dx, residual)
                piece.add_back(dx, residual)
                return dx
            da = piece.buffers("da", *x.shape).zero_()
            if everywhere:
                attention_back(dy, da, da)
            else:
                da_queries = piece.buffers("da_queries", *dy.shape).zero_()
                attention_back(dy, da, da_queries)
                piece.add_back(da, da_queries)
            dx = norm_back(da)
            if not self.input_wanted:
                return None
            piece.add_back(dx, residual)
            return dx

        return y, back
