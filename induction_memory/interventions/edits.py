"""Edits of an associative memory in the basis of its embeddings.

W scores the pair (u, v) as v^T W u. Among all changes that give the pairs (u_k, v_k) the scores s_k, the smallest is a
sum of their outer products,

    W' = W + sum_k c_k v_k u_k^T,    G c = s - (v_k^T W u_k)_k,    G_kl = (v_k . v_l)(u_k . u_l),

for one pair the rank-one edit W + (s - v^T W u) v u^T / (|v|^2 |u|^2). Erasing is s = 0, inserting s > 0, swapping two
associations sets four scores. With every pair of the ideal memory, W' at s = 0 is W projected off the span of the
v_k u_k^T, and W - W' is its projection onto it: the paper's sum_k alpha_k v_k u_k^T with the alphas that W has.

Matrices may have leading axes (heads), which the embeddings then share. Solved in float64.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require


def pair_scores(
    W: Float[Tensor, "*head d_out d_in"],
    inputs: Float[Tensor, "*head pair d_in"],
    outputs: Float[Tensor, "*head pair d_out"],
) -> Float[Tensor, "*head pair"]:
    """v_k^T W u_k."""
    return ((outputs @ W) * inputs).sum(-1)


def set_scores(
    W: Float[Tensor, "*head d_out d_in"],
    inputs: Float[Tensor, "*head pair d_in"],
    outputs: Float[Tensor, "*head pair d_out"],
    scores: Float[Tensor, "*#head pair"],
) -> Float[Tensor, "*head d_out d_in"]:
    """The closest matrix to W, in the Frobenius norm, that gives every pair its score."""
    exact, u, v = W.double(), inputs.double(), outputs.double()
    gram = (v @ v.mT) * (u @ u.mT)
    missing = scores.double() - pair_scores(exact, u, v)
    weights = torch.linalg.lstsq(gram, missing.unsqueeze(-1), driver="gelsd").solution
    return (exact + (weights * v).mT @ u).to(W.dtype)


def project(
    W: Float[Tensor, "*head d_out d_in"],
    inputs: Float[Tensor, "*head pair d_in"],
    outputs: Float[Tensor, "*head pair d_out"],
    *,
    complement: bool = False,
) -> Float[Tensor, "*head d_out d_in"]:
    """W on the span of the pairs' outer products, or what is left of W without them."""
    rest = set_scores(W, inputs, outputs, torch.zeros(inputs.shape[:-1]))
    return rest if complement else W - rest


def truncate(W: Float[Tensor, "*head d_out d_in"], rank: int) -> Float[Tensor, "*head d_out d_in"]:
    """The closest matrix of this rank: the largest singular values alone."""
    most = min(W.shape[-2:])
    require(1 <= rank <= most, "truncate", f"a rank of 1 to {most}", rank)
    U, S, Vh = torch.linalg.svd(W, full_matrices=False)
    return (U[..., :rank] * S[..., None, :rank]) @ Vh[..., :rank, :]
