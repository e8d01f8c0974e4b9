"""Two other forms of an associative memory (Appendix D): the MLP block, and the product of two factors.

The MLP block ("MLP blocks"):

    F(x) = sum over (i, j) in M of v_j sigma(u_i^T x - b),    sigma = ReLU

If b is above the overlaps u_i^T u_i' of different embeddings, only the neuron of the right input fires, so there is
none of the interference of a linear memory. The inputs may be sets, with

    u_I = 1/sqrt|I| * sum over i in I of u_i,

which a linear memory cannot map to a separate output: W u_{i, j} is always proportional to W u_i + W u_j.

The factorised memory ("Factorizations"): the memory W_* = sum_i y_i x_i^T need not be stored as one d x d matrix. With
random U_0 (d x d') and V_0 (d' x d) of variance 1/d, one gradient-like step on each factor gives

    U = U_0 + sum_i y_i (V_0 x_i)^T,    V = V_0 + sum_i (U_0^T y_i) x_i^T,    W = d / (2 d') U V,

and y_k^T W x_l is about 1{k = l}, with noise of order 1 / sqrt(d') while n < d pairs are stored. Expanding,

    U V = U_0 V_0 + sum_i y_i (V_0 x_i)^T V_0 + U_0 sum_i (U_0^T y_i) x_i^T
          + sum_ij y_i (V_0 x_i)^T (U_0^T y_j) x_j^T

(the paper's display leaves out the U_0 before the third term, whose shape would not fit without it).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import matching
from induction_memory.memory.recall import recall


def mlp_memory(
    x: Float[Tensor, "*#step batch d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    bias: float,
) -> Float[Tensor, "*step batch d_out"]:
    """F(x) with one neuron for every stored pair (inputs_i, outputs_targets(i))."""
    return torch.relu(x @ inputs.mT - bias) @ outputs[..., targets, :]


def mlp_recall(
    inputs: Float[Tensor, "*step i d_in"],
    outputs: Float[Tensor, "*step j d_out"],
    targets: Int[Tensor, " i"],
    bias: float,
) -> Float[Tensor, "*step"]:
    """Fraction of inputs for which argmax_j v_j^T F(u_i) is their target; ties count as misses."""
    out = mlp_memory(inputs, inputs, outputs, targets, bias)
    return recall(matching(torch.eye(out.shape[-1]).to(out), out, outputs, targets))


def set_embeddings(
    embeddings: Float[Tensor, "*step i d_model"], sets: Int[Tensor, "n size"]
) -> Float[Tensor, "*step n d_model"]:
    """u_I for sets of one size, one row per set."""
    repeated = sets.sort(-1).values.diff(dim=-1) == 0
    require(not repeated.any().item(), "sets", "different elements in each set", sets[repeated.any(-1)][:3].tolist())
    return embeddings[..., sets, :].sum(-2) / sets.shape[-1] ** 0.5


class Factors(NamedTuple):
    """U (d x d') and V (d' x d), with any leading axes."""

    U: Float[Tensor, "*step d_out rank"]
    V: Float[Tensor, "*step rank d_in"]


def random_factors(d: int, rank: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Factors:
    """U_0 and V_0 with entries N(0, 1/d)."""
    require(1 <= rank <= d, "rank", f"1 to {d} (the dimension)", rank)
    U = torch.randn(d, rank, generator=generator, dtype=dtype) / d**0.5
    V = torch.randn(rank, d, generator=generator, dtype=dtype) / d**0.5
    return Factors(U, V)


def factorised(
    initial: Factors, inputs: Float[Tensor, "*#step i d_in"], outputs: Float[Tensor, "*#step i d_out"]
) -> Factors:
    """The two factors after each has stored the pairs (inputs_i, outputs_i)."""
    U_0, V_0 = initial
    U = U_0 + outputs.mT @ (inputs @ V_0.mT)
    V = V_0 + (outputs @ U_0).mT @ inputs
    return Factors(U, V)


def product(factors: Factors) -> Float[Tensor, "*step d_out d_in"]:
    """W = d / (2 d') U V, on the scale of W_*."""
    U, V = factors
    d, rank = U.shape[-2:]
    return d / (2 * rank) * U @ V
