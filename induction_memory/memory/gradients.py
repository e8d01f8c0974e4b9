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

The losses are those of `losses.py`. Lemma 5's four terms are the two factors of the display above multiplied out.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.memory.losses import Sequences


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
    """The gradient of `normalised_loss`: as in Lemma 1, but projected off W x and divided by its norm."""
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
