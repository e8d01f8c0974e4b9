"""Means over some positions of a batch, with the standard error of a ratio.

Over the positions M of a batch a score y has the mean

    r = sum over sequences b of s_b / sum over b of n_b,    s_b = sum of y over M in b,  n_b = |M in b|.

Sequences are independent, positions within one are not. The standard error is therefore that of a ratio of sums,

    se^2 = B / (B - 1) * sum_b (s_b - r n_b)^2 / (sum_b n_b)^2.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def masked_mean(
    values: Float[Tensor, "*variant batch pos"], mask: Bool[Tensor, "*#variant batch pos"]
) -> tuple[Float[Tensor, "*variant"], Float[Tensor, "*variant"]]:
    """Mean over the masked positions and its standard error; nan as in `ratio`.

    To average several scores at once, stack them and their masks along an axis before the batch.
    """
    return ratio(torch.where(mask, values, 0.0).sum(-1), mask.sum(-1).to(values.dtype))


def ratio(
    sums: Float[Tensor, "*variant batch"], counts: Float[Tensor, "*#variant batch"]
) -> tuple[Float[Tensor, "*variant"], Float[Tensor, "*variant"]]:
    """r and its standard error, from s_b and n_b.

    r is nan where no position is left. The standard error is nan where all positions left are in a single sequence.
    """
    total, batch = counts.sum(-1), sums.shape[-1]
    mean = sums.sum(-1) / total
    if batch < 2:
        return mean, torch.full_like(mean, torch.nan)
    spread = (sums - mean.unsqueeze(-1) * counts).square().sum(-1)
    several = (counts > 0).sum(-1) > 1
    return mean, torch.where(several, (batch / (batch - 1) * spread).sqrt() / total, torch.nan)
