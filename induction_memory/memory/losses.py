"""The population losses of the paper's lemmas, on finite distributions.

Every expectation is a weighted sum over atoms, so that the same distribution can be put through autograd and through
the closed forms of `gradients.py`. All use the cross-entropy l(y, xi) = log sum_j exp(xi_j) - xi_y.

The appendix writes the attention scores of both lemmas as keys^T W query, the transpose of Section 4's
x_q^T W_K x_k; here as there, rows of these W belong to keys and columns to queries.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require


@dataclass(frozen=True)
class Sequences:
    """A finite distribution of (X, y): `weights` are the probabilities of the atoms, one per row."""

    X: Float[Tensor, "batch pos d_model"]
    "the embeddings x_1 .. x_T of each sequence"
    labels: Int[Tensor, " batch"]
    "the next token y"
    weights: Float[Tensor, " batch"]
    "the probability of each atom"

    def __post_init__(self) -> None:
        total = self.weights.sum().item()
        require(abs(total - 1) < 1e-6, "weights", "probabilities that sum to one", total)


def token_loss(
    W: Float[Tensor, "d_out d_in"],
    w_E: Float[Tensor, "i d_in"],
    w_U: Float[Tensor, "j d_out"],
    joint: Float[Tensor, "i j"],
) -> Float[Tensor, ""]:
    """L(W) = E[l(y, W_U W w_E(z))], with joint[z, y] the probability of each pair (Lemma 1)."""
    return -(joint * (w_E @ W.mT @ w_U.mT).log_softmax(-1)).sum()


def noisy_loss(
    W: Float[Tensor, "d_out d_in"],
    x: Float[Tensor, "batch d_in"],
    labels: Int[Tensor, " batch"],
    weights: Float[Tensor, " batch"],
    w_U: Float[Tensor, "j d_out"],
) -> Float[Tensor, ""]:
    """L(W) = E[l(y, W_U W x)] for inputs x that may be any superposition (Lemma 2)."""
    return cross_entropy(x @ W.mT @ w_U.mT, labels, weights)


def normalised_loss(
    W: Float[Tensor, "d_out d_in"],
    x: Float[Tensor, "batch d_in"],
    conditional: Float[Tensor, "batch j"],
    weights: Float[Tensor, " batch"],
    w_U: Float[Tensor, "j d_out"],
) -> Float[Tensor, ""]:
    """L(W) = E[l(y, W_U LN(W x))], LN(h) = h / |h|, with conditional[b, k] = p(y = k | x_b) (Appendix D)."""
    h = x @ W.mT
    xi = h / h.norm(dim=-1, keepdim=True) @ w_U.mT
    return -(weights * (conditional * xi.log_softmax(-1)).sum(-1)).sum()


def attention_loss(
    W: Float[Tensor, "d_model d_model"],
    data: Sequences,
    Phi_2: Float[Tensor, "d_model d_model"],
    w_U: Float[Tensor, "j d_model"],
    keys: Float[Tensor, "batch pos d_model"] | None = None,
) -> Float[Tensor, ""]:
    """L(W) with xi = W_U Phi_2 X softmax(Z^T W x_T), where the keys Z are X unless given (Lemma 4)."""
    keys = data.X if keys is None else keys
    attention = (keys @ (data.X[:, -1] @ W.mT).unsqueeze(-1)).squeeze(-1).softmax(-1)
    return cross_entropy((attention.unsqueeze(-1) * data.X).sum(1) @ Phi_2.mT @ w_U.mT, data.labels, data.weights)


def stacked_attention_loss(
    W: Float[Tensor, "d_model d_model"],
    data: Sequences,
    p: Float[Tensor, "pos d_model"],
    W_2: Float[Tensor, "d_model d_model"],
    Phi_1: Float[Tensor, "d_model d_model"],
    Phi_2: Float[Tensor, "d_model d_model"],
    w_U: Float[Tensor, "j d_model"],
) -> Float[Tensor, ""]:
    """L(W) of two layers, W = W_K1, with the second softmax linearised around zero (Lemma 5).

    xi = W_U Phi_2 X sigma_bar(Z(W)^T W_2 x_T) with z_t = sum_{s <= t} Phi_1 x_s softmax(p_{1:t}^T W p_t)_s
    and sigma_bar(u)_t = (1 + u_t - mean(u)) / T.
    """
    causal = torch.ones(len(p), len(p), dtype=torch.bool).tril()
    first = (p @ W.mT @ p.mT).masked_fill(~causal, -torch.inf).softmax(-1)  # [query t, key s]
    Z = first @ data.X @ Phi_1.mT
    u = (Z @ (data.X[:, -1] @ W_2.mT).unsqueeze(-1)).squeeze(-1)
    second = (1 + u - u.mean(-1, keepdim=True)) / len(p)
    return cross_entropy((second.unsqueeze(-1) * data.X).sum(1) @ Phi_2.mT @ w_U.mT, data.labels, data.weights)


def cross_entropy(
    xi: Float[Tensor, "batch j"], labels: Int[Tensor, " batch"], weights: Float[Tensor, " batch"]
) -> Float[Tensor, ""]:
    """E[l(y, xi)]."""
    return -(weights * xi.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)).sum()
