"""Recall of an associative memory (Section 5, "Memory recall probes").

A matrix W stores the pairs M when its score v_j^T W u_i is largest at the right j:

    R(W, M) = 1/|M| * sum over (i, j) in M of 1{ argmax_j' v_j'^T W u_i = j }

Ties count as misses: a matrix of zeros recalls nothing, nor does one of a run that diverged (nan). Beside the recall
stand finer readings of the same scores: the margin (target minus best rival), the rank of the target, its softmax
probability, and the signal against the interference of the other scores.

Every function works on one matrix or on a stack with leading axes (`*step`: steps, heads, both); embeddings
may carry the same leading axes, for models whose embeddings train. `allowed[j, i]` says which candidates j
compete for input i (the target must be one); `restricted_recall` keeps some inputs and some candidates only.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require


def store(
    inputs: Float[Tensor, "*step i d_in"],
    outputs: Float[Tensor, "*step j d_out"],
    targets: Int[Tensor, " i"],
    weights: Float[Tensor, " i"] | None = None,
) -> Float[Tensor, "*step d_out d_in"]:
    """W = sum over i of weights_i v_targets(i) u_i^T, the memory of Section 4 (weights 1 unless given)."""
    stored = outputs[..., targets, :].mT
    return (stored if weights is None else stored * weights) @ inputs


def scores(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
) -> Float[Tensor, "*step j i"]:
    """All v_j^T W u_i at once, for one matrix or for a whole trajectory of them."""
    return outputs @ W @ inputs.mT


def recall(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
) -> Float[Tensor, "*step"]:
    """Fraction of inputs whose best-scoring output is their target."""
    s = scores(W, inputs, outputs)
    behind = (s < at_target(s, targets).unsqueeze(-2)).sum(-2)
    return (behind == s.shape[-2] - 1).float().mean(-1)  # all but the target itself


def masked_recall(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    allowed: Bool[Tensor, "j i"],
) -> Float[Tensor, "*step"]:
    """The recall when only the allowed candidates of each input compete, e.g. `causal` ones."""
    return (rank(W, inputs, outputs, targets, allowed) == 1).float().mean(-1)


def restricted_recall(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    of: Int[Tensor, " n"] | None = None,
    among: Int[Tensor, " m"] | None = None,
) -> Float[Tensor, "*step"]:
    """The recall over the inputs `of` alone, against the candidates `among` alone (None: all of them)."""
    of = torch.arange(len(targets)) if of is None else of
    allowed = torch.ones(outputs.shape[-2], len(of), dtype=torch.bool)
    if among is not None:
        allowed[:] = False
        allowed[among] = True
    return masked_recall(W, inputs[..., of, :], outputs, targets[of], allowed)


def margin(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    allowed: Bool[Tensor, "j i"] | None = None,
) -> Float[Tensor, "*step i"]:
    """Score of each target minus that of its best rival: positive exactly where the pair is recalled.

    An input without rivals has an infinite margin.
    """
    s = scores(W, inputs, outputs)
    return at_target(s, targets) - s.masked_fill(~_rivals(s, targets, allowed), -torch.inf).amax(-2)


def rank(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    allowed: Bool[Tensor, "j i"] | None = None,
) -> Int[Tensor, "*step i"]:
    """Place of each target among its candidates: 1 is the best, ties (and nan) count against it."""
    s = scores(W, inputs, outputs)
    ahead = ~(s < at_target(s, targets).unsqueeze(-2)) & _rivals(s, targets, allowed)
    return 1 + ahead.sum(-2)


def soft_recall(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    allowed: Bool[Tensor, "j i"] | None = None,
) -> Float[Tensor, "*step"]:
    """Mean probability that the softmax over the candidates' scores gives to the target."""
    s = scores(W, inputs, outputs)
    if allowed is not None:
        _rivals(s, targets, allowed)
        s = s.masked_fill(~allowed, -torch.inf)
    return at_target(s.softmax(-2), targets).mean(-1)


def signal_to_interference(
    W: Float[Tensor, "*step d_out d_in"],
    inputs: Float[Tensor, "*#step i d_in"],
    outputs: Float[Tensor, "*#step j d_out"],
    targets: Int[Tensor, " i"],
    allowed: Bool[Tensor, "j i"] | None = None,
) -> Float[Tensor, "*step"]:
    """Mean target score over the root mean square of all other scores.

    A memory of n pairs of random embeddings has about 1 / sqrt(2/d + n/d^2); orthonormal ones have no interference
    (infinite); a matrix of zeros has neither (nan).
    """
    s = scores(W, inputs, outputs)
    rivals = _rivals(s, targets, allowed)
    interference = s.masked_fill(~rivals, 0.0).square().sum((-2, -1)) / rivals.sum()
    return at_target(s, targets).mean(-1) / interference.sqrt()


def at_target(s: Float[Tensor, "*step j i"], targets: Int[Tensor, " i"]) -> Float[Tensor, "*step i"]:
    """The entry of each column at its target."""
    return s.gather(-2, targets.expand(*s.shape[:-2], 1, -1)).squeeze(-2)


def causal(n: int) -> Bool[Tensor, "key query"]:
    """The mask of a decoder: position `query` may choose among `key` <= `query`."""
    return torch.ones(n, n, dtype=torch.bool).triu()


def _rivals(
    s: Float[Tensor, "*step j i"], targets: Int[Tensor, " i"], allowed: Bool[Tensor, "j i"] | None
) -> Bool[Tensor, "j i"]:
    """The candidates that compete with each target; a target that is not allowed is the caller's mistake."""
    n_outputs, n_inputs = s.shape[-2:]
    is_target = torch.zeros(n_outputs, n_inputs, dtype=torch.bool)
    is_target[targets, torch.arange(n_inputs)] = True
    if allowed is None:
        return ~is_target
    missing = (is_target & ~allowed).any(0).nonzero().flatten().tolist()
    require(not missing, "allowed", "every input's target among its candidates", f"none for inputs {missing[:5]}")
    return allowed & ~is_target
