"""Recall of an associative memory, and finer measures of the same scores (Section 5, "Memory recall probes").

    R(W, M) = 1/|M| * sum over (i, j) in M of 1{ argmax_j' v_j'^T W u_i = j }

This formula fixes the input; `Association.given` says which side is fixed. An item is recalled if its target scores
strictly above every rival, so ties are misses and a matrix of zeros recalls nothing. A score that is nan, as in a run
that diverged, recalls nothing.

    margin                   target's score minus the best rival's: positive where the pair is recalled
    rank                     place of the target among its candidates, 1 is the best; ties and nan count against it
    soft_recall              probability of the target under the softmax over the candidates' scores
    signal_to_interference   mean target score over the root mean square of all rivals' scores

Divergence (`kl`; the paper's d_KL(W_F, pi_b), Section 5): how far predictions are from a table of conditional
probabilities. The prediction for input k is q_k = softmax of its row of logits: for W_F, of the scores w_U(j)^T W_F
w_E(k). The paper writes

    d_KL(W_F, pi_b) = 1/N * sum over k of KL( q_k || pi_b( . | k) ),

which is infinite as soon as some pi_b(j | k) = 0, because a softmax is never 0, and raw character counts have zeros.
The authors' code measures the other direction, which is finite:

    "to model"     KL(pi_b || q): its minimum over q is 0 at q = pi_b
    "from model"   KL(q || pi_b) as written; `smoothing` mixes in the uniform distribution to make it finite
    "on support"   KL(q given that j is possible || pi_b), finite without smoothing

Birth (`first_lasting`): the birth step is the first step from which something holds to the end.
"""

from typing import Literal, assert_never

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import Association


def hits(a: Association) -> Bool[Tensor, "*lead n"]:
    """Which items are recalled.

    >>> import torch
    >>> import induction_memory as im
    >>> one = torch.eye(3)
    >>> im.memory.hits(im.memory.Association("mine", one[:, [1, 0, 2]], one, one, ideal=one))
    tensor([False, False,  True])
    """
    return target_scores(a) > best_rival(a)


def recall(a: Association) -> Float[Tensor, "*lead"]:
    """Share of the items that are recalled.

    >>> from induction_memory.memory.association import matching
    >>> swapped = torch.eye(3)[[1, 0, 2]]  # two of three pairs exchanged
    >>> round(float(recall(matching(swapped, torch.eye(3), torch.eye(3)))), 2)
    0.33
    """
    return hits(a).double().mean(-1)


def margin(a: Association) -> Float[Tensor, "*lead n"]:
    """Target's score minus the best rival's; infinite for an item without rivals.

    >>> from induction_memory.memory.association import matching
    >>> margin(matching(2 * torch.eye(3), torch.eye(3), torch.eye(3)))
    tensor([2., 2., 2.])
    """
    return target_scores(a) - best_rival(a)


def rank(a: Association) -> Int[Tensor, "*lead n"]:
    """Place of each target among its candidates: 1 is the best, ties (and nan) count against it.

    >>> import torch
    >>> import induction_memory as im
    >>> one = torch.eye(3)
    >>> im.memory.rank(im.memory.Association("mine", one[:, [1, 0, 2]], one, one, ideal=one))
    tensor([3, 3, 1])
    """
    ahead = ~(a.table < target_scores(a).unsqueeze(-1)) & a.rivals
    return 1 + ahead.sum(-1)


def soft_recall(a: Association) -> Float[Tensor, "*lead"]:
    """Mean probability that the softmax over the candidates' scores gives to the target.

    >>> import torch
    >>> import induction_memory as im
    >>> one = torch.eye(3)
    >>> round(im.memory.soft_recall(im.memory.Association("mine", 2 * one, one, one, ideal=one)).item(), 3)
    0.787
    """
    among = a.table if a.allowed is None else a.table.masked_fill(~a.candidates, -torch.inf)
    return _at(among.softmax(-1), a.targets).double().mean(-1)


def signal_to_interference(a: Association) -> Float[Tensor, "*lead"]:
    """Mean target score over the root mean square of the rivals' scores.

    A memory of n pairs of random embeddings has about 1 / sqrt(2/d + n/d^2); orthonormal ones have no interference
    (infinite); a matrix of zeros has neither (nan).

    >>> import torch
    >>> import induction_memory as im
    >>> one = torch.eye(3)
    >>> a = im.memory.Association("mine", one + 0.1, one, one, ideal=one)
    >>> round(im.memory.signal_to_interference(a).item(), 1)
    11.0
    """
    rivals = a.rivals
    interference = a.table.masked_fill(~rivals, 0.0).square().sum((-2, -1)) / rivals.sum()
    return (target_scores(a).mean(-1) / interference.sqrt()).double()


def target_scores(a: Association) -> Float[Tensor, "*lead n"]:
    """The score of each item at its target."""
    return _at(a.table, a.targets)


def best_rival(a: Association) -> Float[Tensor, "*lead n"]:
    """The largest score of each item at a rival; nan if the score of any rival is nan.

    Minus infinity is added to the scores that do not compete: adding to the table is faster than selecting from it.
    """
    penalty = torch.zeros_like(a.rivals, dtype=a.table.dtype).masked_fill(~a.rivals, -torch.inf)
    return (a.table + penalty).amax(-1)


def _at(table: Float[Tensor, "*lead n candidate"], targets: Int[Tensor, " n"]) -> Float[Tensor, "*lead n"]:
    return table.gather(-1, targets.unsqueeze(-1).expand(*table.shape[:-2], -1, 1)).squeeze(-1)


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


def first_lasting(
    holds: Bool[np.ndarray, "step *rest"] | Bool[Tensor, "step *rest"], step: Shaped[np.ndarray, " step"]
) -> Float[np.ndarray, "*rest"]:
    """First step from which `holds` is true at every later one too; nan where it is false at the last step.

    >>> first_lasting(np.array([False, True, False, True, True]), np.array([0, 10, 20, 30, 40])).item()
    30.0
    """
    stays = np.logical_and.accumulate(np.asarray(holds)[::-1], axis=0)[::-1]
    return np.where(stays[-1], np.asarray(step, float)[stays.argmax(0)], np.nan)
