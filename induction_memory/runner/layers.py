"""The steps of a transformer's layer on many runs at once: a variant axis before the batch, any heads, any norm.

The weights and the modules are the model's own; attention is fused. Nothing here knows of patches.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def project(
    x: Float[Tensor, "*lead pos d_model"], attention: Any, letters: str
) -> tuple[Float[Tensor, "*lead pos head d_head"], ...]:
    """x W[head] + b[head] for every head, of W_Q, W_K, W_V as the letters say: in one multiplication.

    Where W = I, as the paper's W_Q, it costs nothing.
    """
    weights = [
        (getattr(attention, f"W_{letter.upper()}"), getattr(attention, f"b_{letter.upper()}")) for letter in letters
    ]
    free = [_is_identity(W, b) for W, b in weights]
    stacked = [(W.mT.flatten(0, 1), b.flatten()) for (W, b), is_free in zip(weights, free, strict=True) if not is_free]
    parts: Iterator[Tensor] = iter(())
    if stacked:
        W, b = (torch.cat(one) for one in zip(*stacked, strict=True))
        parts = iter(F.linear(x, W, b).chunk(len(stacked), dim=-1))
    shape = weights[0][1].shape
    return tuple(x.unsqueeze(-2) if is_free else next(parts).unflatten(-1, shape) for is_free in free)


def combine(attention: Any, z: Float[Tensor, "*lead pos head d_head"]) -> Float[Tensor, "*lead pos d_model"]:
    """The heads' outputs together: sum over heads of z W_O[head], and b_O."""
    return F.linear(z.flatten(-2), attention.W_O.flatten(0, 1).T, attention.b_O)


def unembed(model: Any, x: Float[Tensor, "*lead pos d_model"]) -> Float[Tensor, "*lead pos vocab"]:
    """Logits of the last stream, through the last norm where there is one."""
    normed = x if model.cfg.normalization_type is None else apply(model.ln_final, x)
    return F.linear(normed, model.unembed.W_U.T, model.unembed.b_U)


def attend(
    attention: Any,
    q: Float[Tensor, "variant batch m head d_head"],
    k: Float[Tensor, "variant batch pos head d_head"],
    v: Float[Tensor, "variant batch pos head d_head"],
    queries: Int[Tensor, "batch m"] | None = None,
) -> Float[Tensor, "variant batch m head d_head"]:
    """Causal attention, softmax(q k^T / scale) v, where the q are those of all positions or of `queries`."""
    variants, batch, pos = k.shape[:3]
    mask = None
    if queries is not None:
        mask = (torch.arange(pos) <= queries[..., None]).expand(variants, -1, -1, -1).flatten(0, 1).unsqueeze(1)
    q, k, v = (t.flatten(0, 1).transpose(1, 2) for t in (q, k, v))
    z = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=1 / float(attention.attn_scale)
    )
    return z.transpose(1, 2).unflatten(0, (variants, batch))


def running_mean(v: Float[Tensor, "*lead pos d_head"]) -> Float[Tensor, "*lead pos d_head"]:
    """What a head makes of its values when all its keys are the same: the mean of those so far."""
    return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1).unsqueeze(-1)


def rotated(
    attention: Any, x: Float[Tensor, "variant batch pos head d_head"]
) -> Float[Tensor, "variant batch pos head d_head"]:
    """Queries or keys of all positions as attention compares them: turned by their position where that is rotary."""
    return attention.apply_rotary(x.flatten(0, 1)).view_as(x) if is_rotary(attention) else x


def is_rotary(attention: Any) -> bool:
    return attention.cfg.positional_embedding_type == "rotary"


def take(x: Float[Tensor, "*lead pos d"] | Bool[Tensor, "*lead pos d"], positions: Int[Tensor, "..."]) -> Tensor:
    """Rows of x [(variant) batch pos d] at the positions [(variant) batch m]."""
    index = positions.expand(*x.shape[:-2], -1).unsqueeze(-1)
    return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1]))


def apply(module: Any, x: Tensor) -> Tensor:
    """A module that takes [batch, pos, d], on any number of leading axes."""
    return module(x) if x.dim() == 3 else module(x.flatten(0, -3)).unflatten(0, x.shape[:-2])


def _is_identity(W: Float[Tensor, "head d_model d_head"], b: Float[Tensor, "head d_head"]) -> bool:
    if len(W) > 1 or W.shape[1] != W.shape[2] or W[0, 0, 0] != 1 or b.any():
        return False
    return torch.equal(W[0], torch.eye(W.shape[1]))
