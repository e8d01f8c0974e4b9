"""One block of the model, forward and backward.

    m = x + attention(norm(x))        y = m + feed(norm(m))        (parallel: m + feed(norm(x)))

Attention computes outputs only at the requested queries, and y has one row for each of them.

The parts of a block that act on each position by itself, forward and backward, on rows x [row, d_model].

LayerNorm         y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
linear            y = x W_F                    dx = dy W_F^T                  dW_F = x^T dy
ReLU              y = relu(x W_in) W_out       dh = (dy W_out^T) 1{h > 0}     dW_out = h^T dy,  dW_in = x^T dh
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention_layer import Attended, AttentionLayer, AttentionMaps
from induction_memory.training.fast.lookup import Table
from induction_memory.training.fast.queries import Queries
from induction_memory.training.fast.workspace import Sums, Workspace


@dataclass(frozen=True)
class Normalized:
    """What LayerNorm's backward needs."""

    x: Tensor
    mean: Tensor
    inverse_deviation: Tensor


@dataclass(frozen=True)
class LayerNorm:
    """One LayerNorm; `name` is its parameters' prefix."""

    name: str
    gamma: Float[Tensor, " d_model"]
    beta: Float[Tensor, " d_model"]
    eps: float
    trained: tuple[bool, bool]

    @classmethod
    def read(cls, name: str, parameters: Mapping[str, Tensor], trained: frozenset[str], eps: float) -> "LayerNorm":
        gamma, beta = f"{name}.w", f"{name}.b"
        return cls(name, parameters[gamma], parameters[beta], eps, (gamma in trained, beta in trained))

    def forward(self, x: Float[Tensor, "*row d_model"]) -> tuple[Float[Tensor, "*row d_model"], Normalized]:
        y, mean, inverse = torch.native_layer_norm(x, [x.shape[-1]], self.gamma, self.beta, self.eps)
        return y, Normalized(x, mean, inverse)

    def backward(
        self, dy: Float[Tensor, "*row d_model"], saved: Normalized, sums: Sums
    ) -> Float[Tensor, "*row d_model"]:
        width = dy.shape[-1]
        dx, dgamma, dbeta = torch.ops.aten.native_layer_norm_backward(
            dy,
            saved.x,
            [width],
            saved.mean,
            saved.inverse_deviation,
            self.gamma,
            self.beta,
            [True, *self.trained],
        )
        if self.trained[0]:
            sums(f"{self.name}.w", width).add_(dgamma)
        if self.trained[1]:
            sums(f"{self.name}.b", width).add_(dbeta)
        return dx


@dataclass(frozen=True)
class LinearFeedForward:
    """x W_F; `name` is the parameter's prefix."""

    name: str
    W_F: Float[Tensor, "d_model d_model"]
    trained: bool

    @classmethod
    def read(cls, name: str, parameters: Mapping[str, Tensor], trained: frozenset[str]) -> "LinearFeedForward":
        return cls(name, parameters[f"{name}.W_F"], f"{name}.W_F" in trained)

    def forward(
        self, x: Float[Tensor, "row d_model"], residual: Float[Tensor, "row d_model"], buffers: Workspace
    ) -> Float[Tensor, "row d_model"]:
        """residual + the feed-forward of x."""
        return torch.addmm(residual, x, self.W_F, out=buffers(f"{self.name}.y", *x.shape))

    def backward(
        self,
        dy: Float[Tensor, "row d_model"],
        x: Float[Tensor, "row d_model"],
        buffers: Workspace,
        sums: Sums,
        wanted: bool,
    ) -> Float[Tensor, "row d_model"] | None:
        """dx, if it is wanted."""
        if self.trained:
            sums(f"{self.name}.W_F", *self.W_F.shape).addmm_(x.T, dy)
        return torch.mm(dy, self.W_F.T, out=buffers(f"{self.name}.dx", *x.shape)) if wanted else None


@dataclass(frozen=True)
class ReluFeedForward:
    """relu(x W_in) W_out; `name` is the parameters' prefix."""

    name: str
    W_in: Float[Tensor, "d_model d_mlp"]
    W_out: Float[Tensor, "d_mlp d_model"]
    trained: tuple[bool, bool]

    @classmethod
    def read(cls, name: str, parameters: Mapping[str, Tensor], trained: frozenset[str]) -> "ReluFeedForward":
        W_in, W_out = f"{name}.W_in", f"{name}.W_out"
        return cls(name, parameters[W_in], parameters[W_out], (W_in in trained, W_out in trained))

    def forward(
        self, x: Float[Tensor, "row d_model"], residual: Float[Tensor, "row d_model"], buffers: Workspace
    ) -> Float[Tensor, "row d_model"]:
        """residual + the feed-forward of x."""
        hidden = torch.mm(x, self.W_in, out=self._hidden(x, buffers)).relu_()
        return torch.addmm(residual, hidden, self.W_out, out=buffers(f"{self.name}.y", *x.shape))

    def _hidden(self, x: Tensor, buffers: Workspace) -> Tensor:
        return buffers(f"{self.name}.hidden", x.shape[0], self.W_in.shape[1])

    def backward(
        self,
        dy: Float[Tensor, "row d_model"],
        x: Float[Tensor, "row d_model"],
        buffers: Workspace,
        sums: Sums,
        wanted: bool,
    ) -> Float[Tensor, "row d_model"] | None:
        """dx, if it is wanted."""
        hidden = self._hidden(x, buffers)
        if self.trained[1]:
            sums(f"{self.name}.W_out", *self.W_out.shape).addmm_(hidden.T, dy)
        if not self.trained[0] and not wanted:
            return None
        dhidden = torch.mm(dy, self.W_out.T, out=buffers("dhidden", *hidden.shape))
        torch.ops.aten.threshold_backward.grad_input(dhidden, hidden, 0, grad_input=dhidden)
        if self.trained[0]:
            sums(f"{self.name}.W_in", *self.W_in.shape).addmm_(x.T, dhidden)
        return torch.mm(dhidden, self.W_in.T, out=buffers(f"{self.name}.dx", *x.shape)) if wanted else None


FeedForward = LinearFeedForward | ReluFeedForward


EMBEDDINGS = frozenset({"embed.W_E", "pos_embed.W_pos"})


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
        prefix = f"blocks.{layer}"
        self.layer = layer
        self.parallel = config.parallel_blocks
        self.norm1 = LayerNorm.read(f"{prefix}.ln1", parameters, trained, eps) if config.layer_norm else None
        self.norm2: LayerNorm | None = None
        self.feed = _feed_forward(layer, config, parameters, trained)
        if self.feed is not None and config.layer_norm:
            self.norm2 = LayerNorm.read(f"{prefix}.ln2", parameters, trained, eps)

        self.input_wanted = learns_below(layer, trained)
        norm1_learns = self.norm1 is not None and any(self.norm1.trained)
        self.maps = AttentionMaps(
            layer,
            config,
            parameters,
            trained,
            embedded if layer == 0 and self.norm1 is None else None,
            self.input_wanted or norm1_learns,
            layer < config.n_layers - 1,
        )
        self.attention = AttentionLayer(self.maps)
        self.middle_wanted = self.maps.inputs_wanted or bool(self.maps.trained)
        norm2_learns = self.norm2 is not None and any(self.norm2.trained)
        self.feed_input_wanted = norm2_learns or (self.input_wanted if self.parallel else self.middle_wanted)
        self.wanted = learns_below(layer + 1, trained)
        """Whether this block's output needs a backward pass."""

    def forward(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        queries: Queries,
        pattern: Float[Tensor, "batch query key"] | None,
        buffers: Workspace,
        sums: Sums,
    ) -> tuple[Float[Tensor, "batch query d_model"], Passed]:
        a, norm1 = (x, None) if self.norm1 is None else self.norm1.forward(x)
        x_queries = queries.choose(x)
        a_queries = x_queries if self.norm1 is None else queries.choose(a)
        middle = buffers(f"{self.layer}.middle", *x_queries.shape)
        attended = self.attention.forward(a, a_queries, tokens, queries, pattern, x_queries, middle, buffers, sums)
        if self.feed is None:
            return middle, Passed(queries, attended, middle, norm1, None)
        feed_in, norm2 = x_queries if self.parallel else middle, None
        if self.norm2 is not None:
            feed_in, norm2 = self.norm2.forward(feed_in)
        y = self.feed.forward(feed_in.flatten(0, 1), middle.flatten(0, 1), buffers)
        return y.view_as(middle), Passed(queries, attended, feed_in, norm1, norm2)

    def backward(
        self,
        dy: Float[Tensor, "batch query d_model"],
        saved: Passed,
        tokens: Int[Tensor, "batch pos"],
        buffers: Workspace,
        sums: Sums,
    ) -> Float[Tensor, "batch pos d_model"] | None:
        """Sum the parameters' gradients; return that of the block's input, if it is needed. `dy` is overwritten."""
        residual = self._feed_backward(dy, saved, buffers, sums)
        if not self.middle_wanted:
            return None
        everywhere = saved.queries.positions is None

        def attention(dx: Tensor | None, dx_queries: Tensor | None) -> None:
            self.attention.backward(dy, saved.attended, tokens, saved.queries, dx, dx_queries, buffers, sums)

        if not self.maps.inputs_wanted:
            attention(None, None)
            return None
        shape = saved.attended.inputs.shape
        if self.norm1 is None or saved.norm1 is None:
            if everywhere:
                attention(residual, residual)
                return residual
            dx = buffers("dx", *shape).zero_()
            attention(dx, residual)
            saved.queries.add_back(dx, residual)
            return dx
        da = buffers("da", *shape).zero_()
        if everywhere:
            attention(da, da)
        else:
            da_queries = buffers("da_queries", *dy.shape).zero_()
            attention(da, da_queries)
            saved.queries.add_back(da, da_queries)
        dx = self.norm1.backward(da, saved.norm1, sums)
        if self.input_wanted:
            saved.queries.add_back(dx, residual)
        return dx if self.input_wanted else None

    def _feed_backward(
        self, dy: Tensor, saved: Passed, buffers: Workspace, sums: Sums
    ) -> Float[Tensor, "batch query d_model"]:
        """Turn dy into dm, and return the gradient of x along the residual stream, which differs in parallel blocks."""
        if self.feed is None:
            return dy
        rows = saved.feed_in.flatten(0, 1)
        dfeed = self.feed.backward(dy.flatten(0, 1), rows, buffers, sums, self.feed_input_wanted)
        if dfeed is None:
            return dy
        dfeed = dfeed.view_as(dy)
        if self.norm2 is not None and saved.norm2 is not None:
            dfeed = self.norm2.backward(dfeed, saved.norm2, sums)
        return dfeed.add_(dy) if self.parallel else dy.add_(dfeed)


def _feed_forward(
    layer: int, config: ModelConfig, parameters: Mapping[str, Tensor], trained: frozenset[str]
) -> FeedForward | None:
    name = f"blocks.{layer}.mlp"
    match config.feed_forward_of(layer + 1):
        case "none":
            return None
        case "linear":
            return LinearFeedForward.read(name, parameters, trained)
        case "relu":
            return ReluFeedForward.read(name, parameters, trained)
        case unknown:
            assert_never(unknown)


def learns_below(layer: int, trained: frozenset[str]) -> bool:
    """Whether a block's input depends on a parameter that learns."""
    prefixes = tuple(f"blocks.{lower}." for lower in range(layer))
    return any(name in EMBEDDINGS or name.startswith(prefixes) for name in trained)
