"""The parts of a block that act on each position by itself, forward and backward, on rows x [row, d_model].

LayerNorm         y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
linear            y = x W_F                    dx = dy W_F^T                  dW_F = x^T dy
ReLU              y = relu(x W_in) W_out       dh = (dy W_out^T) 1{h > 0}     dW_out = h^T dy,  dW_in = x^T dh
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.training.fast.sums import Sums
from induction_memory.training.fast.workspace import Workspace


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
