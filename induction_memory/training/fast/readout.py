"""Logits to loss and back.

    nll = log(sum exp(logits)) - logits[target]        dlogits = w (softmax(logits) - 1{target})

where w is the weight of a row in the loss: one over the number of trained positions, or zero. As in attention, logits
are computed in bits, because powers of two are cheaper; a gradient with respect to bits is log 2 times dlogits.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def cross_entropy(
    bits: Float[Tensor, "row vocab"],
    targets: Int[Tensor, " row"],
    weights: Float[Tensor, " row"] | None,
) -> tuple[Float[Tensor, " row"], Bool[Tensor, " row"]]:
    """-log p(target) and whether the target is the likeliest, from logits times log2 e.

    The bits are overwritten; if weights are given, with the gradient of the weighted sum of nll.
    """
    correct = bits.argmax(-1) == targets
    bits.sub_(bits.amax(-1, keepdim=True))
    at_target = bits.gather(-1, targets[:, None])
    torch.exp2(bits, out=bits)
    total = bits.sum(-1, keepdim=True)
    nll = (total.log2() - at_target).mul_(math.log(2)).squeeze(-1)
    if weights is not None:
        weights = weights[:, None] * math.log(2)
        bits.mul_(weights / total)
        bits.scatter_add_(-1, targets[:, None], -weights)
    return nll, correct
