"""Causal attention of one head, forward and backward, in blocks of queries (equation 2 of Section 2).

    S = q k^T          P[t, s] = exp(S[t, s]) / sum over s' <= t of exp(S[t, s'])          o = P v

A block of queries meets only the keys that one of its rows may see, so that most of the upper triangle is never
computed. With do the gradient of the loss with respect to o, row by row:

    dv = P^T do        dP = do v^T        dS = P * (dP - delta),  delta[t] = sum over s of P[t, s] dP[t, s] = do[t] . o[t]
    dq = dS k          dk = dS^T q

Two liberties that change nothing: scores come in bits (q has been multiplied by log2 e), because 2^x costs half of e^x,
and P is kept without its denominator l, which moves to the narrow side: o = (P v) / l, and do / l takes the place of do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.training.workspace import Workspace

LOG2_E = 1 / math.log(2)
BLOCK = 64


@dataclass(frozen=True)
class QueryBlock:
    """Queries start..stop-1, which see keys 0..keys-1; of these, all of them see 0..shared-1."""

    start: int
    stop: int
    keys: int
    shared: int
    mask: Float[Tensor, "*batch query masked_key"]
    """Added to the scores of keys shared..keys-1: 0, or -inf where the key comes after the query."""


def causal_mask(pos: int, device: torch.device) -> Float[Tensor, "query key"]:
    """0 where the key is not after the query, else -inf."""
    return torch.full((pos, pos), -torch.inf, device=device).triu_(1)


def causal_blocks(mask: Float[Tensor, "query key"]) -> tuple[QueryBlock, ...]:
    """Every position is a query."""
    pos = mask.shape[0]
    edges = [(start, min(start + BLOCK, pos)) for start in range(0, pos, BLOCK)]
    return tuple(QueryBlock(start, stop, stop, start, mask[start:stop, start:stop]) for start, stop in edges)


def chosen_blocks(
    mask: Float[Tensor, "pos pos"], positions: Int[Tensor, "batch query"], bounds: Sequence[tuple[int, int]]
) -> tuple[QueryBlock, ...]:
    """Each sequence queries from the positions given; `bounds` has the least and greatest of each BLOCK of them."""
    query = positions.shape[1]
    blocks = []
    for start, (least, greatest) in zip(range(0, query, BLOCK), bounds, strict=True):
        stop = min(start + BLOCK, query)
        rows = mask[:, least + 1 : greatest + 1].index_select(0, positions[:, start:stop].reshape(-1))
        rows = rows.view(positions.shape[0], stop - start, greatest - least)
        blocks.append(QueryBlock(start, stop, greatest + 1, least + 1, rows))
    return tuple(blocks)


@dataclass(frozen=True)
class Weighting:
    """What a forward leaves for its backward: block by block, P without its denominator, and 1 / l."""

    blocks: tuple[QueryBlock, ...]
    weights: tuple[Tensor, ...]
    scale: tuple[Tensor, ...] | None
    """None for an imposed pattern, which comes normalised and whose scores get no gradient."""


def weigh(
    q: Float[Tensor, "batch query d_head"],
    k: Float[Tensor, "batch key d_head"],
    blocks: tuple[QueryBlock, ...],
    buffers: Workspace,
    name: str,
) -> Weighting:
    """The attention weights of queries in bits."""
    weights, scales = [], []
    for number, block in enumerate(blocks):
        rows = block.stop - block.start
        S = buffers(f"{name}.P{number}", q.shape[0], rows, block.keys)
        torch.bmm(q[:, block.start : block.stop], k[:, : block.keys].transpose(1, 2), out=S)
        S[:, :, block.shared :].add_(block.mask)
        S.sub_(S.amax(-1, keepdim=True))
        torch.exp2(S, out=S)
        weights.append(S)
        scales.append(S.sum(-1, keepdim=True).reciprocal_())
    return Weighting(blocks, tuple(weights), tuple(scales))


def impose(pattern: Float[Tensor, "batch query key"], blocks: tuple[QueryBlock, ...]) -> Weighting:
    """A given pattern in place of the softmax."""
    weights = tuple(pattern[:, block.start : block.stop, : block.keys] for block in blocks)
    return Weighting(blocks, weights, None)


def average(
    weighting: Weighting, v: Float[Tensor, "batch key d_value"], out: Float[Tensor, "batch query d_value"]
) -> None:
    """out = P v."""
    for number, (block, P) in enumerate(zip(weighting.blocks, weighting.weights, strict=True)):
        o = out[:, block.start : block.stop]
        torch.bmm(P, v[:, : block.keys], out=o)
        if weighting.scale is not None:
            o.mul_(weighting.scale[number])


def backward(
    weighting: Weighting,
    do: Float[Tensor, "batch query d_value"],
    o: Float[Tensor, "batch query d_value"],
    q: Float[Tensor, "batch query d_head"],
    k: Float[Tensor, "batch key d_head"],
    v: Float[Tensor, "batch key d_value"],
    buffers: Workspace,
    *,
    dq: Float[Tensor, "batch query d_head"] | None = None,
    add_dk: Float[Tensor, "batch key d_head"] | None = None,
    add_dv: Float[Tensor, "batch key d_value"] | None = None,
) -> None:
    """Write dq, and add to dk and dv, whichever are given; an imposed pattern leaves dq zero and dk alone.

    `do` is overwritten.
    """
    if weighting.scale is None and dq is not None:
        dq.zero_()
    for number, (block, P) in enumerate(zip(weighting.blocks, weighting.weights, strict=True)):
        queries, keys = slice(block.start, block.stop), slice(0, block.keys)
        if weighting.scale is not None:
            do[:, queries].mul_(weighting.scale[number])
        if add_dv is not None:
            add_dv[:, keys].baddbmm_(P.transpose(1, 2), do[:, queries])
        if weighting.scale is None or (dq is None and add_dk is None):
            continue
        delta = torch.linalg.vecdot(do[:, queries], o[:, queries]).unsqueeze(-1)
        dS = buffers("dS", *P.shape)
        value = v[:, keys].transpose(1, 2)
        torch.baddbmm(delta.expand_as(P), do[:, queries], value, beta=-1 / LOG2_E, alpha=1 / LOG2_E, out=dS)
        dS.mul_(P)
        if dq is not None:
            torch.bmm(dS, k[:, keys], out=dq[:, queries])
        if add_dk is not None:
            add_dk[:, keys].baddbmm_(dS.transpose(1, 2), q[:, queries])
