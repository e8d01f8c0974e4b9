"""Recall of an associative memory, and finer readings of the same scores (Section 5, "Memory recall probes").

    R(W, M) = 1/|M| * sum over (i, j) in M of 1{ argmax_j' v_j'^T W u_i = j }

written for a given input; `Association.given` says which side is fixed. An item is recalled if its target scores
strictly above every rival, so ties are misses and a matrix of zeros recalls nothing. A score that is nan (a run that
diverged) recalls nothing either.

    margin                   target's score minus that of its best rival: positive where the pair is recalled
    rank                     place of the target among its candidates, 1 is the best; ties and nan count against it
    soft_recall              probability of the target under the softmax over the candidates' scores
    signal_to_interference   mean target score over the root mean square of all rivals' scores
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.memory.association import Association


def hits(a: Association) -> Bool[Tensor, "*lead n"]:
    """Which of the items that are asked are recalled.

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
    """Target's score minus that of its best rival; infinite for an item without rivals.

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
    """The score of each item with its target."""
    return _at(a.table, a.targets)


def best_rival(a: Association) -> Float[Tensor, "*lead n"]:
    """The largest score of each item with a rival; nan if one of them is nan.

    Minus infinity is added to the scores that do not compete: adding to the table is faster than selecting from it.
    """
    penalty = torch.zeros_like(a.rivals, dtype=a.table.dtype).masked_fill(~a.rivals, -torch.inf)
    return (a.table + penalty).amax(-1)


def _at(table: Float[Tensor, "*lead n candidate"], targets: Int[Tensor, " n"]) -> Float[Tensor, "*lead n"]:
    return table.gather(-1, targets.unsqueeze(-1).expand(*table.shape[:-2], -1, 1)).squeeze(-1)
