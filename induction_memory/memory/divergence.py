"""How far predictions are from a table of conditional probabilities (Section 5, d_KL(W_F, pi_b)).

The prediction for input k is q_k = softmax of its row of logits: for W_F, of the scores w_U(j)^T W_F w_E(k). The paper
writes

    d_KL(W_F, pi_b) = 1/N * sum over k of KL( q_k || pi_b( . | k) ),

which is infinite as soon as some pi_b(j | k) = 0, because a softmax is never 0, and raw character counts have zeros.
The authors' code measures the other direction, which is finite:

    "to model"     KL(pi_b || q): its minimum over q is 0 at q = pi_b
    "from model"   KL(q || pi_b) as written; `smoothing` mixes in the uniform distribution to make it finite
    "on support"   KL(q given that j is possible || pi_b), finite without smoothing
"""

from typing import Literal, assert_never

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require

Kind = Literal["to model", "from model", "on support"]


def kl(
    logits: Float[Tensor, "*lead i j"], conditional: Float[Tensor, "i j"], kind: Kind, *, smoothing: float = 0.0
) -> Float[Tensor, "*lead"]:
    """Mean over inputs of the divergence between softmax(logits_i) and pi( . | i), in the direction `kind`.

    >>> import torch
    >>> import induction_memory as im
    >>> conditional = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    >>> round(im.memory.kl(torch.zeros(2, 2), conditional, "to model").item(), 3)
    0.184
    """
    sums = conditional.sum(-1)
    wrong = ((sums - 1).abs() > 1e-4) | (conditional < 0).any(-1)
    require(not wrong.any().item(), "conditional", "rows of probabilities", f"sums {sums[wrong][:3].tolist()}")
    require(0 <= smoothing <= 1, "smoothing", "a share from 0 to 1", smoothing)
    match kind:
        case "to model":
            return relative_entropy(conditional.log(), logits.log_softmax(-1)).mean(-1)
        case "from model":
            smoothed = (1 - smoothing) * conditional + smoothing / conditional.shape[-1]
            return relative_entropy(logits.log_softmax(-1), smoothed.log()).mean(-1)
        case "on support":
            possible = logits.masked_fill(conditional == 0, -torch.inf)
            return relative_entropy(possible.log_softmax(-1), conditional.log()).mean(-1)
        case _:
            assert_never(kind)


def relative_entropy(log_p: Float[Tensor, "*#row j"], log_q: Float[Tensor, "*#row j"]) -> Float[Tensor, "*row"]:
    """KL(p || q) = sum_j p (log p - log q), with 0 log 0 = 0."""
    p = log_p.exp()
    return (p * (log_p - log_q)).masked_fill(p == 0, 0.0).sum(-1)
