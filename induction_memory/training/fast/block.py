"""One block of the model, forward and backward.

    m = x + attention(norm(x))        y = m + feed(norm(m))        (parallel: m + feed(norm(x)))

Attention computes outputs only at the requested queries, and y has one row for each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.training.fast.attention_layer import Attended, AttentionLayer
from induction_memory.training.fast.attention_maps import AttentionMaps
from induction_memory.training.fast.lookup import Table
from induction_memory.training.fast.positionwise import (
    FeedForward,
    LayerNorm,
    LinearFeedForward,
    Normalized,
    ReluFeedForward,
)
from induction_memory.training.fast.queries import Queries
from induction_memory.training.fast.sums import Sums
from induction_memory.training.fast.workspace import Workspace

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
