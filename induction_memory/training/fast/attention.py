"""Causal attention of one head, forward and backward, in blocks of queries (Section 2, equation 2).

    P[t, s] = exp(S[t, s]) / sum over s' <= t of exp(S[t, s'])          o = P v

A block of queries uses only the keys that at least one of its rows may see, so that most of the upper triangle is never
computed. With do the gradient of the loss with respect to o:

    dv = P^T do        dP = do v^T        dS[t, s] = P[t, s] (dP[t, s] - sum over s' of P[t, s'] dP[t, s'])

`attention_scores.py` computes the scores S and takes their gradient dS. Scores come in bits (times log2 e), because 2^x
costs half of e^x.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.training.fast.workspace import Workspace

LOG2_E = 1 / math.log(2)
BLOCK = 64


@dataclass(frozen=True)
class QueryBlock:
    """Queries start..stop-1. At least one of them sees each of the keys 0..keys-1; all of them see 0..shared-1."""

    number: int
    start: int
    stop: int
    keys: int
    shared: int
    mask: Float[Tensor, "*batch query masked_key"]
    """Added to the scores of keys shared..keys-1: 0, or -inf where the key comes after the query."""

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@runtime_checkable
class Scores(Protocol):
    """Computes the scores, and receives their gradients."""

    def fill(self, block: QueryBlock, S: Float[Tensor, "batch query key"]) -> None:
        """Write a block's scores, in bits."""

    def receive(self, block: QueryBlock, dS: Float[Tensor, "batch query key"]) -> None:
        """Take a block's gradients with respect to its scores, not in bits: d loss / d(S / log2 e)."""


def causal_mask(pos: int, device: torch.device) -> Float[Tensor, "query key"]:
    """0 where the key is not after the query, else -inf."""
    return torch.full((pos, pos), -torch.inf, device=device).triu_(1)


def causal_blocks(mask: Float[Tensor, "query key"]) -> tuple[QueryBlock, ...]:
    """Every position is a query."""
    pos = mask.shape[0]
    edges = [(start, min(start + BLOCK, pos)) for start in range(0, pos, BLOCK)]
    return tuple(
        QueryBlock(number, start, stop, stop, start, mask[start:stop, start:stop])
        for number, (start, stop) in enumerate(edges)
    )


def chosen_blocks(
    mask: Float[Tensor, "pos pos"], positions: Int[Tensor, "batch query"], bounds: Sequence[tuple[int, int]]
) -> tuple[QueryBlock, ...]:
    """The given positions of each sequence are queries; `bounds` has the least and greatest of each BLOCK of them."""
    batch, query = positions.shape
    blocks = []
    for number, (least, greatest) in enumerate(bounds):
        start, stop = number * BLOCK, min(number * BLOCK + BLOCK, query)
        rows = mask[:, least + 1 : greatest + 1].index_select(0, positions[:, start:stop].reshape(-1))
        rows = rows.view(batch, stop - start, greatest - least)
        blocks.append(QueryBlock(number, start, stop, greatest + 1, least + 1, rows))
    return tuple(blocks)


@dataclass(frozen=True)
class Weighting:
    """Attention weights P, block by block."""

    blocks: tuple[QueryBlock, ...]
    weights: tuple[Tensor, ...]
    imposed: bool
    """A pattern in place of the softmax: its scores get no gradient."""


def weigh(scores: Scores, batch: int, blocks: tuple[QueryBlock, ...], buffers: Workspace, name: str) -> Weighting:
    """The softmax of the scores; the weights are kept in the buffer `name`."""
    weights = []
    for block in blocks:
        S = buffers(f"{name}.P{block.number}", batch, block.stop - block.start, block.keys)
        scores.fill(block, S)
        S[:, :, block.shared :].add_(block.mask)
        S.sub_(S.amax(-1, keepdim=True))
        torch.exp2(S, out=S)
        weights.append(S.mul_(S.sum(-1, keepdim=True).reciprocal_()))
    return Weighting(blocks, tuple(weights), imposed=False)


def impose(pattern: Float[Tensor, "batch query key"], blocks: tuple[QueryBlock, ...]) -> Weighting:
    """A given pattern in place of the softmax."""
    weights = tuple(pattern[:, block.rows, : block.keys] for block in blocks)
    return Weighting(blocks, weights, imposed=True)


def add_average(
    weighting: Weighting,
    v: Float[Tensor, "batch key d_value"],
    out: Float[Tensor, "batch query d_value"],
) -> None:
    """Add P v to `out`."""
    for block, P in zip(weighting.blocks, weighting.weights, strict=True):
        out[:, block.rows].baddbmm_(P, v[:, : block.keys])


def write_average(
    weighting: Weighting,
    v: Float[Tensor, "batch key d_value"],
    out: Float[Tensor, "batch query d_value"],
) -> None:
    """out = P v."""
    for block, P in zip(weighting.blocks, weighting.weights, strict=True):
        torch.bmm(P, v[:, : block.keys], out=out[:, block.rows])


def backward(
    weighting: Weighting,
    do: Float[Tensor, "batch query d_value"],
    v: Float[Tensor, "batch key d_value"],
    buffers: Workspace,
    *,
    scores: Scores | None,
    add_dv: Float[Tensor, "batch key d_value"] | None,
) -> None:
    """Hand dS to `scores` and add to `add_dv`, if they are given; an imposed pattern has no dS."""
    for block, P in zip(weighting.blocks, weighting.weights, strict=True):
        do_block, keys = do[:, block.rows], slice(0, block.keys)
        if add_dv is not None:
            add_dv[:, keys].baddbmm_(P.transpose(1, 2), do_block)
        if scores is not None and not weighting.imposed:
            dS = torch.bmm(do_block, v[:, keys].transpose(1, 2), out=buffers("dS", *P.shape))
            torch.ops.aten._softmax_backward_data.out(dS, P, -1, torch.float32, grad_input=dS)
            scores.receive(block, dS)
