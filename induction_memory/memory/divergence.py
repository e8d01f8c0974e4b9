"""How far a memory's softmax is from a table of conditional probabilities (Section 5, d_KL(W_F, pi_b)).

The prediction of a matrix for input k is q_k = softmax over j of v_j^T W u_k. The paper writes

    d_KL(W_F, pi_b) = 1/N * sum over k of KL( q_k || pi_b( . | k) ),

which is infinite as soon as some pi_b(j | k) = 0, for a softmax is never 0: on raw character counts it always
is. The authors' code measures the other direction, KL(pi_b || q), which is finite. So there are three:

- `kl_to_model`:    KL(pi_b || q), the one to plot; its minimum over q is 0 at q = pi_b.
- `kl_from_model`:  KL(q || pi_b) as written; `smoothing` mixes in the uniform distribution to make it finite.
- `kl_from_model_on_support`: KL(q given that j is possible || pi_b), finite without smoothing;
  `mass_off_support` is what that conditioning leaves out.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.associative import scores


def log_predictions(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
) -> Float[Tensor, "*step i j"]:
    """log q_k(j), one row an input, as conditional tables are written."""
    return scores(W, inputs, outputs).mT.log_softmax(-1)


def kl_to_model(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    conditional: Float[Tensor, "i j"],
) -> Float[Tensor, "*step"]:
    """Mean over inputs of KL(pi( . | i) || q_i). Leave inputs out by indexing `inputs` and `conditional`."""
    _check(conditional)
    return _kl(conditional.log(), log_predictions(W, inputs, outputs))


def kl_from_model(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    conditional: Float[Tensor, "i j"],
    smoothing: float = 0.0,
) -> Float[Tensor, "*step"]:
    """Mean over inputs of KL(q_i || (1 - smoothing) pi( . | i) + smoothing / N).

    Infinite without smoothing where pi is 0.
    """
    _check(conditional)
    require(0 <= smoothing <= 1, "smoothing", "a share from 0 to 1", smoothing)
    smoothed = (1 - smoothing) * conditional + smoothing / conditional.shape[-1]
    return _kl(log_predictions(W, inputs, outputs), smoothed.log())


def kl_from_model_on_support(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    conditional: Float[Tensor, "i j"],
) -> Float[Tensor, "*step"]:
    """Mean over inputs of KL(q_i renormalised where pi( . | i) > 0 || pi( . | i))."""
    _check(conditional)
    possible = scores(W, inputs, outputs).mT.masked_fill(conditional == 0, -torch.inf)
    return _kl(possible.log_softmax(-1), conditional.log())


def mass_off_support(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    conditional: Float[Tensor, "i j"],
) -> Float[Tensor, "*step"]:
    """Mean probability that the memory gives to outputs that never follow the input."""
    q = log_predictions(W, inputs, outputs).exp()
    return q.masked_fill(conditional > 0, 0.0).sum(-1).mean(-1)


def _kl(log_p: Float[Tensor, "*#step i j"], log_q: Float[Tensor, "*#step i j"]) -> Float[Tensor, "*step"]:
    """Mean over rows of sum_j p (log p - log q), with 0 log 0 = 0."""
    p = log_p.exp()
    terms = torch.where(p == 0, 0.0, p * (log_p - log_q))
    return terms.sum(-1).mean(-1)


def _check(conditional: Float[Tensor, "i j"]) -> None:
    sums = conditional.sum(-1)
    wrong = ((sums - 1).abs() > 1e-4) | (conditional < 0).any(-1)
    require(not wrong.any().item(), "conditional", "rows of probabilities", f"sums {sums[wrong][:3].tolist()}")
