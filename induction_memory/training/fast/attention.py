"""Causal attention of one head, forward and backward, in blocks of queries (Section 2, equation 2).

    P[t, s] = exp(S[t, s]) / sum over s' <= t of exp(S[t, s'])          o = P v

A block of queries uses only the keys that at least one of its rows may see, so that most of the upper triangle is never
computed. With do the gradient of the loss with respect to o:

    dv = P^T do        dP = do v^T        dS[t, s] = P[t, s] (dP[t, s] - sum over s' of P[t, s'] dP[t, s'])

`attention_scores.py` computes the scores S and takes their gradient dS. Scores come in bits (times log2 e), because 2^x
costs half of e^x.

Attention scores, by products of queries and keys or from tables, and their gradients.

Products, S = q k^T:

    dq = dS k        dk = dS^T q

Tables, in the first layer, where queries and keys are both tokens plus positions, x_t = w_E(z_t) + p_t:

    S[t, s] = x_t^T W x_s = R[t, z_s] + C[t, s]      R[t, :] = x_t W W_E^T,    C[t, :] = x_t W W_pos^T

R has one column per token of the vocabulary and C one per position; both are maps of the embedded input (`lookup.py`).
Looking up costs a third of multiplying. Backward, dR[t, n] sums dS[t, s] over the keys s that hold token n, and
dC = dS; both go to the sums by token and by position, from which dW follows once per batch:

    dW = X^T (dR W_E + dC W_pos)      where X^T dR and X^T dC are the gradients of the maps W W_E^T and W W_pos^T
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.training.fast.lookup import Table
from induction_memory.training.fast.workspace import Sums, Workspace

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


BIT = math.log(2)  # the natural logarithm of one bit


@dataclass(frozen=True)
class ProductScores:
    """S = q k^T, with q in bits."""

    q: Float[Tensor, "batch query d_head"]
    k: Float[Tensor, "batch key d_head"]
    dq: Float[Tensor, "batch query d_head"] | None = None
    """Written by `receive`, when given."""
    add_dk: Float[Tensor, "batch key d_head"] | None = None
    """Added to by `receive`, when given."""

    def fill(self, block: QueryBlock, S: Float[Tensor, "batch query key"]) -> None:
        torch.bmm(self.q[:, block.rows], self.k[:, : block.keys].transpose(1, 2), out=S)

    def receive(self, block: QueryBlock, dS: Float[Tensor, "batch query key"]) -> None:
        if self.dq is not None:
            dq = self.dq[:, block.rows]
            torch.baddbmm(dq, dS, self.k[:, : block.keys], beta=0, alpha=BIT, out=dq)
        if self.add_dk is not None:
            self.add_dk[:, : block.keys].baddbmm_(dS.transpose(1, 2), self.q[:, block.rows], alpha=BIT)


class ScoreTables:
    """The tables of one key-query matrix between embedded inputs."""

    def __init__(self, W: Float[Tensor, "d_model d_model"], embedded: Table) -> None:
        """`W` in bits."""
        tokens, positions = embedded.by_token, embedded.by_position
        self.embedded = embedded
        self.by_key_token = Table(tokens @ W @ tokens.T, positions @ W @ tokens.T)
        self.by_key_position = Table(tokens @ W @ positions.T, positions @ W @ positions.T)
        self._cut: dict[int, Tensor] = {}

    def cut(self, keys: int) -> Float[Tensor, "vocab key"]:
        """The first columns of C's table by token, as a contiguous copy."""
        if keys not in self._cut:
            self._cut[keys] = self.by_key_position.by_token[:, :keys].contiguous()
        return self._cut[keys]

    def gradient(self, sums: Sums, name: str) -> Float[Tensor, "d_model d_model"]:
        """dW from the sums that `TableScores.receive` has made."""
        tokens, positions = self.embedded.by_token, self.embedded.by_position
        vocab, pos = tokens.shape[0], positions.shape[0]
        dR_token, dR_position = sums(f"{name}.R.token", vocab, vocab), sums(f"{name}.R.position", pos, vocab)
        dC_token, dC_position = tokens.new_zeros(vocab, pos), tokens.new_zeros(pos, pos)
        for number, start in enumerate(range(0, pos, BLOCK)):
            stop = min(start + BLOCK, pos)
            dC_token[:, :stop] += sums(f"{name}.C{number}.token", vocab, stop)
            dC_position[start:stop, :stop] = sums(f"{name}.C{number}.position", stop - start, stop)
        by_token = dR_token @ tokens + dC_token @ positions
        by_position = dR_position @ tokens + dC_position @ positions
        return (tokens.T @ by_token + positions.T @ by_position) * BIT


@dataclass(frozen=True)
class TableScores:
    """S[t, s] = R[t, z_s] + C[t, s], for queries at every position."""

    tables: ScoreTables
    tokens: Int[Tensor, "batch pos"]
    buffers: Workspace
    sums: Sums
    name: str
    asked: tuple[Tensor, ...]
    """Tokens at the queries of each block."""

    @classmethod
    def of(
        cls,
        tables: ScoreTables,
        tokens: Int[Tensor, "batch pos"],
        blocks: tuple[QueryBlock, ...],
        buffers: Workspace,
        sums: Sums,
        name: str,
    ) -> "TableScores":
        """Scores of a micro-batch; `name` is that of the sums."""
        asked = tuple(tokens[:, block.rows].flatten() for block in blocks)
        return cls(tables, tokens, buffers, sums, name, asked)

    def fill(self, block: QueryBlock, S: Float[Tensor, "batch query key"]) -> None:
        asked = self.asked[block.number]
        R, C = self.tables.by_key_token, self.tables.by_key_position
        by_token = self.buffers("R", *S.shape[:2], R.by_token.shape[1])
        torch.index_select(R.by_token, 0, asked, out=by_token.flatten(0, 1))
        by_token.add_(R.by_position[block.rows])
        seen = self.tokens[:, None, : block.keys].expand_as(S)
        torch.gather(by_token, 2, seen, out=S)
        by_position = self.buffers("C", *S.shape)
        torch.index_select(self.tables.cut(block.keys), 0, asked, out=by_position.flatten(0, 1))
        S.add_(by_position).add_(C.by_position[block.rows, : block.keys])

    def receive(self, block: QueryBlock, dS: Float[Tensor, "batch query key"]) -> None:
        asked = self.asked[block.number]
        vocab, pos = self.tables.by_key_token.by_token.shape[0], self.tokens.shape[1]
        dR = self.buffers("dR", *dS.shape[:2], vocab).zero_()
        dR.scatter_add_(2, self.tokens[:, None, : block.keys].expand_as(dS), dS)
        self.sums(f"{self.name}.R.token", vocab, vocab).index_add_(0, asked, dR.flatten(0, 1))
        self.sums(f"{self.name}.R.position", pos, vocab)[block.rows] += dR.sum(0)
        key = f"{self.name}.C{block.number}"
        self.sums(f"{key}.token", vocab, block.keys).index_add_(0, asked, dS.flatten(0, 1))
        self.sums(f"{key}.position", *dS.shape[1:]).add_(dS.sum(0))
