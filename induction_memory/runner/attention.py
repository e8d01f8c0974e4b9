"""Attention on many runs at once: a variant axis before the batch. Nothing here knows of patches."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

WIDEST = 40.0  # range of scores whose exponentials can be added up in float32 without loss
BLOCK = 64  # queries whose attention is computed at once on a CPU; faster there than the fused kernel
SCORES_AT_ONCE = 2**18  # attention scores in one block


def attend(
    q: Float[Tensor, "variant batch m head d_head"],
    k: Float[Tensor, "variant batch pos head d_head"],
    v: Float[Tensor, "variant batch pos head d_out"],
    scale: float,
    queries: Int[Tensor, "batch m"] | None = None,
) -> Float[Tensor, "variant batch m head d_out"]:
    """Causal attention, softmax(q k^T / scale) v, where the q are those of all positions or of `queries`."""
    variants, _, pos = k.shape[:3]
    q, k, v = (rearrange(t, "variant batch pos head d -> (variant batch) head pos d") for t in (q, k, v))
    if queries is not None:
        later = torch.arange(pos, device=k.device) > queries[..., None]
        later = repeat(later, "batch query key -> (variant batch) 1 query key", variant=variants)
        z = ((q / scale) @ k.mT).masked_fill_(later, -torch.inf).softmax(-1) @ v
    elif k.device.type == "cpu" and pos > BLOCK:
        z = _causal(q, k, v, scale)
    else:
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / scale)
    return rearrange(z, "(variant batch) head pos d -> variant batch pos head d", variant=variants)


def _causal(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_out"],
    scale: float,
) -> Float[Tensor, "batch head pos d_out"]:
    """Causal attention by blocks of queries."""
    q, k, v, heads = (*(one.flatten(0, 1) for one in (q, k, v)), q.shape[1])
    z = q.new_empty(*q.shape[:2], v.shape[-1])
    for some, start, end, weights in _blocks(q, k, scale):
        z[some, start:end] = weights @ v[some, :end]
    return z.unflatten(0, (-1, heads))


def _blocks(
    q: Float[Tensor, "n pos d_head"], k: Float[Tensor, "n pos d_head"], scale: float
) -> Iterator[tuple[slice, int, int, Float[Tensor, "some query key"]]]:
    """The attention of queries start to end to the keys before end, for a few heads and sequences at a time.

    Later keys are not computed, and the scores stay in the CPU cache.
    """
    pos = q.shape[1]
    later = torch.full((BLOCK, BLOCK), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    none, at_once = q.new_zeros(1), max(1, SCORES_AT_ONCE // (BLOCK * pos))
    for first in range(0, len(q), at_once):
        some = slice(first, first + at_once)
        queries, keys = q[some], k[some].mT
        for start in range(0, pos, BLOCK):
            end = min(start + BLOCK, pos)
            scores = torch.baddbmm(none, queries[:, start:end], keys[..., :end], beta=0, alpha=1 / scale)
            scores[..., start:].add_(later[: end - start, : end - start])
            yield some, start, end, scores.softmax(-1)


def pattern(
    q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch pos head d_head"], scale: float
) -> Float[Tensor, "batch head pos pos"]:
    """The attention itself: softmax over the keys s <= t of q_t . k_s / scale."""
    return pattern_and_output(q, k, q[..., :0], scale)[0]


def pattern_and_output(
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch pos head d_head"],
    v: Float[Tensor, "batch pos head d_out"],
    scale: float,
) -> tuple[Float[Tensor, "batch head pos pos"], Float[Tensor, "batch pos head d_out"]]:
    """The attention, and the values averaged with it."""
    heads, pos = q.shape[2], q.shape[1]
    q, k, v = (rearrange(one, "batch pos head d -> (batch head) pos d") for one in (q, k, v))
    weights, z = q.new_empty(len(q), pos, pos), torch.empty_like(v)
    for some, start, end, block in _blocks(q, k, scale):
        weights[some, start:end, :end], weights[some, start:end, end:] = block, 0.0
        z[some, start:end] = block @ v[some, :end]
    return weights.unflatten(0, (-1, heads)), rearrange(z, "(batch head) pos d -> batch pos head d", head=heads)


def weigh(
    pattern: Float[Tensor, "batch query key"], v: Float[Tensor, "batch pos d_head"]
) -> Float[Tensor, "batch query d_head"]:
    """sum over s <= t of pattern[t, s] v_s, by blocks of queries, so that later keys are not multiplied."""
    if pattern.shape[1] != v.shape[1]:
        return pattern @ v
    ends = [min(start + BLOCK, v.shape[1]) for start in range(0, v.shape[1], BLOCK)]
    starts = range(0, v.shape[1], BLOCK)
    return torch.cat([pattern[:, a:b, :b] @ v[:, :b] for a, b in zip(starts, ends, strict=True)], dim=1)


def running_mean(
    v: Float[Tensor, "*lead pos d_head"], weights: Float[Tensor, "*lead pos"] | None = None
) -> Float[Tensor, "*lead pos d_head"]:
    """The output of a head whose scores do not depend on the query: the mean of the values so far.

    The weights are exp(score). Without weights, for keys that are all the same, it is the plain mean.
    """
    if weights is None:
        return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1, device=v.device).unsqueeze(-1)
    return (v * weights.unsqueeze(-1)).cumsum(-2) / weights.cumsum(-1).unsqueeze(-1)


def without_attention(
    same: str, read: Sequence[Float[Tensor, "*lead pos _"]], scale: float
) -> Float[Tensor, "*lead pos d_out"] | None:
    """z of a head whose values, keys or queries (`same`) are equal at all positions; None if it needs attention.

    With equal values z is the value, with equal keys the running mean, with equal queries a weighted running mean.
    """
    v = read[-1]
    if same == "v":
        return v
    if same == "k":
        return running_mean(v)
    if same == "q":
        q, k, _ = read
        scores = (k @ q[..., 0, :, None]).squeeze(-1) / scale
        if float((scores.max() - scores.min()).detach()) < WIDEST:
            return running_mean(v, (scores - scores.max()).exp())
    return None


def stacked(variants: Sequence[Tensor]) -> Tensor:
    """torch.stack(variants), without a copy if there is only one."""
    return torch.stack(tuple(variants)) if len(variants) > 1 else variants[0].unsqueeze(0)


def take(x: Float[Tensor, "*lead pos d"] | Bool[Tensor, "*lead pos d"], positions: Int[Tensor, "..."]) -> Tensor:
    """Rows of x [(variant) batch pos d] at the positions [(variant) batch m]."""
    index = positions.expand(*x.shape[:-2], -1).unsqueeze(-1)
    return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1]))
