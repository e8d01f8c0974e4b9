"""Attention on many runs at once: a variant axis before the batch. Nothing here knows of patches."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def attend(
    q: Float[Tensor, "variant batch m head d_head"],
    k: Float[Tensor, "variant batch pos head d_head"],
    v: Float[Tensor, "variant batch pos head d_head"],
    scale: float,
    queries: Int[Tensor, "batch m"] | None = None,
) -> Float[Tensor, "variant batch m head d_head"]:
    """Causal attention, softmax(q k^T / scale) v, where the q are those of all positions or of `queries`."""
    variants, batch, pos = k.shape[:3]
    mask = None
    if queries is not None:
        seen = torch.arange(pos, device=k.device) <= queries[..., None]
        mask = seen.expand(variants, -1, -1, -1).flatten(0, 1).unsqueeze(1)
    q, k, v = (t.flatten(0, 1).transpose(1, 2) for t in (q, k, v))
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=1 / scale)
    return z.transpose(1, 2).unflatten(0, (variants, batch))


def pattern(
    q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch pos head d_head"], scale: float
) -> Float[Tensor, "batch head pos pos"]:
    """The attention itself: softmax over the keys s <= t of q_t . k_s / scale."""
    scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / scale
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1)


def running_mean(v: Float[Tensor, "*lead pos d_head"]) -> Float[Tensor, "*lead pos d_head"]:
    """What a head makes of its values when all its keys are the same: the mean of those so far."""
    return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1, device=v.device).unsqueeze(-1)


def take(x: Float[Tensor, "*lead pos d"] | Bool[Tensor, "*lead pos d"], positions: Int[Tensor, "..."]) -> Tensor:
    """Rows of x [(variant) batch pos d] at the positions [(variant) batch m]."""
    index = positions.expand(*x.shape[:-2], -1).unsqueeze(-1)
    return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1]))
