"""The non-linear memory of an MLP block (Appendix D, "MLP blocks").

    F(x) = sum over (i, j) in M of v_j sigma(u_i^T x - b),    sigma = ReLU

With b above the overlaps u_i^T u_i' of different embeddings only the neuron of the right input fires, so the
interference of a linear memory is gone as long as b separates. The inputs may be sets, with

    u_I = 1/sqrt|I| * sum over i in I of u_i,

which a linear memory cannot map to a separate output: W u_{i, j} is always proportional to W u_i + W u_j.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import matching
from induction_memory.memory.readings import recall


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
    require(
        not repeated.any().item(),
        "sets",
        "different elements in each set",
        sets[repeated.any(-1)][:3].tolist(),
    )
    return embeddings[..., sets, :].sum(-2) / sets.shape[-1] ** 0.5
