"""What follows the heads of the last layer, as one map from the stream to the logits.

    tail(x) = x W + b                                          nothing follows, or a linear feed-forward
    tail(x) = x W + b + relu(x W_in + b_in) W_2 + b_2          a ReLU layer follows: W = W_U, W_2 = W_out W_U

This takes fewer multiplications than one matrix after the other, because the vocabulary is small. A norm allows no such
map. If the tail is linear, the output of each head can be read through it as well (`Through`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

ROWS_AT_ONCE = 2048  # rows of a hidden layer, which then fits the CPU cache


def unless_zero(bias: Tensor) -> Tensor | None:
    """The bias for F.linear, None if it is zero: adding zeros would cost a pass over the whole output."""
    return bias if bool(bias.any()) else None


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """x -> x W_F."""

    W_F: Float[Tensor, "d d_out"]

    def __call__(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d_out"]:
        return x @ self.W_F


@dataclass(frozen=True, eq=False)
class ReluLayer:
    """x -> relu(x W_in + b_in) W_out + b_out."""

    W_in: Float[Tensor, "d d_mlp"]
    b_in: Float[Tensor, " d_mlp"]
    W_out: Float[Tensor, "d_mlp d_out"]
    b_out: Float[Tensor, " d_out"]

    def __call__(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d_out"]:
        b_in, b_out = self._biases
        rows = x.reshape(-1, x.shape[-1]).split(ROWS_AT_ONCE)
        parts = [F.linear(F.linear(part, self.W_in.T, b_in).relu_(), self.W_out.T, b_out) for part in rows]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).view(*x.shape[:-1], -1)

    def before(self, W: Float[Tensor, "d_out other"]) -> "ReluLayer":
        """The layer followed by a linear map."""
        return ReluLayer(self.W_in, self.b_in, self.W_out @ W, self.b_out @ W)

    @cached_property
    def _biases(self) -> tuple[Tensor | None, Tensor | None]:
        return unless_zero(self.b_in), unless_zero(self.b_out)


@dataclass(frozen=True, eq=False)
class Tail:
    """The logits of the stream after the last layer's heads."""

    W: Float[Tensor, "d_model vocab"]
    b: Float[Tensor, " vocab"]
    hidden: ReluLayer | None = None

    @classmethod
    def of(
        cls,
        feed_forward: Callable[[Tensor], Tensor] | None,
        W_U: Float[Tensor, "d_model vocab"],
        b_U: Float[Tensor, " vocab"],
    ) -> "Tail | None":
        """The last feed-forward and the unembedding; None for a feed-forward of another kind."""
        match feed_forward:
            case None:
                return cls(W_U, b_U)
            case LinearLayer():
                return cls(W_U + feed_forward.W_F @ W_U, b_U)
            case ReluLayer():
                return cls(W_U, b_U, feed_forward.before(W_U))
            case _:
                return None

    def __call__(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead vocab"]:
        straight = F.linear(x, self.W.T, self._bias)
        return straight if self.hidden is None else straight + self.hidden(x)

    @cached_property
    def _bias(self) -> Tensor | None:
        return unless_zero(self.b)


@dataclass(frozen=True, eq=False)
class Through:
    """The map M that reads the output of a layer's heads, if M makes it no wider than the values."""

    name: str
    M: Float[Tensor, "head d_head d_out"]
    W_V: Float[Tensor, "head d_model d_head"]
    b_V: Float[Tensor, "head d_head"]

    def values(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead head d_out"]:
        """(x W_V + b_V) M for each head of a normed stream x, in one multiplication."""
        W, b = self._folded
        return F.linear(x, W, b).unflatten(-1, (len(self.M), -1))

    @cached_property
    def _folded(self) -> tuple[Tensor, Tensor | None]:
        return (self.W_V @ self.M).mT.flatten(0, 1), unless_zero((self.b_V.unsqueeze(-2) @ self.M).flatten())
