"""Closed-form gradients of the paper's lemmas (Sections 4 and 6, Appendices B.2 and D).

They all start from d l / d xi_k = p_hat(k | .) - 1{y = k}, and end as sums of outer products of embeddings, which is
why gradient descent writes associative memories:

    Lemma 1     sum_k E_z[ (p_hat(k | z) - p(k | z)) w_U(k) w_E(z)^T ]
    Lemma 2     sum_k p(y = k) w_U(k) (mu_hat_k - mu_k)^T,
                mu_k = E[x | y = k],  mu_hat_k = E[p_hat(k | x) x] / p(y = k)
    Lemma 4     sum_k E[ (p_hat(k | X) - 1{y = k}) 1/T sum_t w_U(k)^T Phi_2 x_t (z_t - z_bar) x_T^T ]      at W = 0
    Lemma 5     sum_k E[ (p_hat(k | X) - 1{y = k}) 1/T sum_t w_U(k)^T Phi_2 (x_t - x_bar)
                         1/t sum_{s <= t} (Phi_1 x_s)^T W_2 x_T (p_s - p_bar_{1:t}) p_t^T ]                at W = 0
    LayerNorm   sum_k E[ (p_hat(k | x) - p(k | x)) / |W x| (I - W x (W x)^T / |W x|^2) w_U(k) x^T ]

Lemma 5's four terms are the two factors of the display above multiplied out.

The losses are here too. Every expectation is a weighted sum over the atoms of a finite distribution, so autograd and
the closed form can be compared exactly. All use the cross-entropy l(y, xi) = log sum_j exp(xi_j) - xi_y.

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
    """L(W) with xi = W_U Phi_2 X softmax(Z^T W x_T) and keys Z, by default X (Lemma 4)."""
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


def token_gradient(
    W: Float[Tensor, "d_out d_in"],
    w_E: Float[Tensor, "i d_in"],
    w_U: Float[Tensor, "j d_out"],
    joint: Float[Tensor, "i j"],
) -> Float[Tensor, "d_out d_in"]:
    """Lemma 1: the gradient of `token_loss` at any W."""
    p_hat = (w_E @ W.mT @ w_U.mT).softmax(-1)
    error = joint.sum(-1, keepdim=True) * p_hat - joint  # p(z) (p_hat(k | z) - p(k | z))
    return w_U.mT @ error.mT @ w_E


def class_means(
    x: Float[Tensor, "batch d_in"], labels: Int[Tensor, " batch"], weights: Float[Tensor, " batch"], classes: int
) -> tuple[Float[Tensor, " j"], Float[Tensor, "j d_in"]]:
    """p(y = k) and mu_k = E[x | y = k] for every class; a class without mass has mean 0."""
    membership = torch.nn.functional.one_hot(labels, classes).to(x) * weights.unsqueeze(-1)
    mass = membership.sum(0)
    return mass, (membership.mT @ x) / mass.clamp(min=torch.finfo(x.dtype).tiny).unsqueeze(-1)


def noisy_gradient(
    W: Float[Tensor, "d_out d_in"],
    x: Float[Tensor, "batch d_in"],
    labels: Int[Tensor, " batch"],
    weights: Float[Tensor, " batch"],
    w_U: Float[Tensor, "j d_out"],
) -> Float[Tensor, "d_out d_in"]:
    """Lemma 2: the gradient of `noisy_loss` at any W, from (conditional) means of the inputs alone."""
    mass, mu = class_means(x, labels, weights, len(w_U))
    p_hat = (x @ W.mT @ w_U.mT).softmax(-1)
    weighted_mu_hat = (p_hat * weights.unsqueeze(-1)).mT @ x  # p(y = k) mu_hat_k, defined even without mass
    return w_U.mT @ (weighted_mu_hat - mass.unsqueeze(-1) * mu)


def normalised_gradient(
    W: Float[Tensor, "d_out d_in"],
    x: Float[Tensor, "batch d_in"],
    conditional: Float[Tensor, "batch j"],
    weights: Float[Tensor, " batch"],
    w_U: Float[Tensor, "j d_out"],
) -> Float[Tensor, "d_out d_in"]:
    """The gradient of `normalised_loss`: Lemma 1's, made orthogonal to W x and divided by |W x|."""
    h = x @ W.mT
    norm = h.norm(dim=-1, keepdim=True)
    direction = h / norm
    update = ((direction @ w_U.mT).softmax(-1) - conditional) @ w_U
    update = (update - direction * (direction * update).sum(-1, keepdim=True)) / norm
    return (update * weights.unsqueeze(-1)).mT @ x


def key_query_gradient(
    data: Sequences,
    Phi_2: Float[Tensor, "d_model d_model"],
    w_U: Float[Tensor, "j d_model"],
    keys: Float[Tensor, "batch pos d_model"] | None = None,
) -> Float[Tensor, "d_model d_model"]:
    """Lemma 4: the gradient of `attention_loss` at W = 0, where attention is uniform."""
    keys = data.X if keys is None else keys
    worth = _worth_of_attending(data, data.X.mean(1), Phi_2, w_U)
    centred = keys - keys.mean(1, keepdim=True)
    moved = (worth.unsqueeze(-1) * centred).mean(1)  # 1/T sum_t
    return (moved * data.weights.unsqueeze(-1)).mT @ data.X[:, -1]


def first_layer_gradient(
    data: Sequences,
    p: Float[Tensor, "pos d_model"],
    W_2: Float[Tensor, "d_model d_model"],
    Phi_1: Float[Tensor, "d_model d_model"],
    Phi_2: Float[Tensor, "d_model d_model"],
    w_U: Float[Tensor, "j d_model"],
) -> Float[Tensor, "d_model d_model"]:
    """Lemma 5: the gradient of `stacked_attention_loss` at W = 0."""
    T = len(p)
    causal = torch.ones(T, T, dtype=p.dtype).tril() / torch.arange(1, T + 1, dtype=p.dtype).unsqueeze(-1)  # 1/t
    match = (data.X @ Phi_1.mT @ (data.X[:, -1] @ W_2.mT).unsqueeze(-1)).squeeze(-1)  # (Phi_1 x_s)^T W_2 x_T
    running = match @ causal.mT  # its mean over s <= t
    second = (1 + running - running.mean(-1, keepdim=True)) / T
    worth = _worth_of_attending(data, (second.unsqueeze(-1) * data.X).sum(1), Phi_2, w_U)
    worth = (worth - worth.mean(-1, keepdim=True)) / T * data.weights.unsqueeze(-1)
    # sum_s c_s (p_s - p_bar) = sum_s (c_s - c_bar) p_s: coefficients of p_s p_t^T, summed over the atoms
    coefficients = causal * (worth.mT @ match - (worth * running).sum(0).unsqueeze(-1))  # [query t, key s]
    return p.mT @ coefficients.mT @ p


def _worth_of_attending(
    data: Sequences,
    attended: Float[Tensor, "batch d_model"],
    Phi_2: Float[Tensor, "d_model d_model"],
    w_U: Float[Tensor, "j d_model"],
) -> Float[Tensor, "batch pos"]:
    """sum_k (p_hat(k | X) - 1{y = k}) w_U(k)^T Phi_2 x_t: how much the loss rises with attention on t."""
    error = (attended @ Phi_2.mT @ w_U.mT).softmax(-1) - torch.nn.functional.one_hot(data.labels, len(w_U))
    return (data.X @ (error @ w_U @ Phi_2).unsqueeze(-1)).squeeze(-1)
