"""Causal attention of one head, forward and backward, in blocks of queries (Section 2, equation 2).

    P[t, s] = exp(S[t, s]) / sum over s' <= t of exp(S[t, s'])          o = P v

A block of queries uses only the keys that at least one of its rows may see, so that most of the upper triangle is never
computed. With do the gradient of the loss with respect to o:

    dv = P^T do        dP = do v^T        dS[t, s] = P[t, s] (dP[t, s] - sum over s' of P[t, s'] dP[t, s'])

Scores S are in bits (times log2 e), because 2^x costs half of e^x. They are products of queries and keys,

    S = q k^T        dq = dS k        dk = dS^T q

or, in the first layer, look-ups. Its input is x_t = w_E(z_t) + p_t, so a linear map of it has one row per
token and one per position (`Table`):

    x_t W = (W_E W)[z_t] + (W_pos W)[t]        dW = W_E^T (sum of dy by token) + W_pos^T (sum of dy by position)

which costs a twelfth of dW = x^T dy, a sum over all positions. The scores are then (`ScoreTables`)

    S[t, s] = x_t^T W x_s = R[t, z_s] + C[t, s]      R[t, :] = x_t W W_E^T,    C[t, :] = x_t W W_pos^T

R has one column per token of the vocabulary and C one per position; both are linear maps of the embedded input. Looking
up costs a third of multiplying. In the backward pass, dR[t, n] sums dS[t, s] over the keys s that hold token n, and dC
= dS. Both are summed by token and by position, and dW follows once per batch:

    dW = X^T (dR W_E + dC W_pos)      where X^T dR and X^T dC are the gradients of the maps W W_E^T and W W_pos^T
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.training.fast.micro_batches import Piece, QueryBlock, Sums

BIT = math.log(2)  # natural logarithm of 2
LOG2_E = 1 / BIT


@runtime_checkable
class Scores(Protocol):
    """Computes the scores, and receives their gradients."""

    def fill(self, block: QueryBlock, S: Float[Tensor, "batch query key"], piece: Piece) -> None:
        """Write a block's scores, in bits."""

    def receive(self, block: QueryBlock, dS: Float[Tensor, "batch query key"], piece: Piece) -> None:
        """Receive a block's gradients with respect to the scores in nats: d loss / d(S / log2 e)."""


def weigh(scores: Scores, piece: Piece, name: str) -> list[Tensor]:
    """The softmax of the scores, block by block; the weights are kept in the buffer `name`."""
    weights = []
    for block in piece.blocks:
        S = piece.buffers(f"{name}.P{block.number}", len(piece.tokens), block.mask.shape[-2], block.keys)
        scores.fill(block, S, piece)
        S[:, :, block.shared :].add_(block.mask)
        S.sub_(S.amax(-1, keepdim=True))
        torch.exp2(S, out=S)
        weights.append(S.mul_(S.sum(-1, keepdim=True).reciprocal_()))
    return weights


def impose(pattern: Float[Tensor, "batch query key"], piece: Piece) -> list[Tensor]:
    """A clamped pattern instead of the softmax, block by block."""
    return [pattern[:, block.rows, : block.keys] for block in piece.blocks]


def average(
    weights: list[Tensor],
    v: Float[Tensor, "batch key d_value"],
    out: Float[Tensor, "batch query d_value"],
    piece: Piece,
    *,
    add: bool = False,
) -> None:
    """out = P v, or with `add` out + P v."""
    for block, P in zip(piece.blocks, weights, strict=True):
        rows = out[:, block.rows]
        torch.baddbmm(rows, P, v[:, : block.keys], beta=int(add), out=rows)


def backward(
    weights: list[Tensor],
    do: Float[Tensor, "batch query d_value"],
    v: Float[Tensor, "batch key d_value"],
    piece: Piece,
    *,
    scores: Scores | None,
    add_dv: Float[Tensor, "batch key d_value"] | None,
) -> None:
    """Pass dS to `scores` and add dv to `add_dv`, unless they are None."""
    for block, P in zip(piece.blocks, weights, strict=True):
        do_block, keys = do[:, block.rows], slice(0, block.keys)
        if add_dv is not None:
            add_dv[:, keys].baddbmm_(P.transpose(1, 2), do_block)
        if scores is not None:
            dS = torch.bmm(do_block, v[:, keys].transpose(1, 2), out=piece.buffers("dS", *P.shape))
            torch.ops.aten._softmax_backward_data.out(dS, P, -1, torch.float32, grad_input=dS)
            scores.receive(block, dS, piece)


@dataclass(frozen=True)
class ProductScores:
    """S = q k^T, with q in bits."""

    q: Float[Tensor, "batch query d_head"]
    k: Float[Tensor, "batch key d_head"]
    dq: Float[Tensor, "batch query d_head"] | None = None
    """dq, written by `receive`, if not None."""
    add_dk: Float[Tensor, "batch key d_head"] | None = None
    """`receive` adds dk to it, if not None."""

    def fill(self, block: QueryBlock, S: Float[Tensor, "batch query key"], piece: Piece) -> None:
        torch.bmm(self.q[:, block.rows], self.k[:, : block.keys].transpose(1, 2), out=S)

    def receive(self, block: QueryBlock, dS: Float[Tensor, "batch query key"], piece: Piece) -> None:
        if self.dq is not None:
            dq = self.dq[:, block.rows]
            torch.baddbmm(dq, dS, self.k[:, : block.keys], beta=0, alpha=BIT, out=dq)
        if self.add_dk is not None:
            self.add_dk[:, : block.keys].baddbmm_(dS.transpose(1, 2), self.q[:, block.rows], alpha=BIT)


@dataclass(frozen=True)
class Table:
    """A linear map of the embedded input as two tables: the image of each token, and of each position."""

    by_token: Float[Tensor, "vocab d_out"]
    by_position: Float[Tensor, "pos d_out"]

    def times(self, W: Float[Tensor, "d_out d_next"]) -> "Table":
        """The tables of the map followed by W."""
        return Table(self.by_token @ W, self.by_position @ W)

    def look_up(
        self,
        tokens: Int[Tensor, "batch query"],
        positions: Int[Tensor, "batch query"] | None,
        out: Float[Tensor, "batch query d_out"],
    ) -> None:
        """out = by_token[tokens] + by_position[positions]; by default all positions in order."""
        rows = out.view(-1, out.shape[-1])
        torch.index_select(self.by_token, 0, tokens.reshape(-1), out=rows)
        if positions is None:
            out.add_(self.by_position)
        else:
            rows.add_(self.by_position.index_select(0, positions.reshape(-1)))

    def add_gradient(
        self,
        dy: Float[Tensor, "batch query d_out"],
        tokens: Int[Tensor, "batch query"],
        positions: Int[Tensor, "batch query"] | None,
        sums: Sums,
        name: str,
    ) -> None:
        """Add the rows of a gradient to the sums of this name."""
        total, rows = self.gradient(sums, name), dy.view(-1, dy.shape[-1])
        total.by_token.index_add_(0, tokens.reshape(-1), rows)
        if positions is None:
            total.by_position.add_(dy.sum(0))
        else:
            total.by_position.index_add_(0, positions.reshape(-1), rows)

    def gradient(self, sums: Sums, name: str) -> "Table":
        """The sums of this name: the gradients of both tables."""
        return Table(sums(f"{name}.token", *self.by_token.shape), sums(f"{name}.position", *self.by_position.shape))


class ScoreTables:
    """The scores of one key-query matrix between embedded inputs, for queries at every position."""

    def __init__(
        self, W: Float[Tensor, "d_model d_model"], embedded: Table, blocks: tuple[QueryBlock, ...], name: str
    ) -> None:
        """`W` in bits; `name` is the name of the sums."""
        self.embedded, self.blocks, self.name = embedded, blocks, name
        by_query = embedded.times(W)
        self.R, self.C = by_query.times(embedded.by_token.T), by_query.times(embedded.by_position.T)
        self.C_cut = [self.C.by_token[:, : block.keys].contiguous() for block in blocks]

    def fill(self, block: QueryBlock, S: Float[Tensor, "batch query key"], piece: Piece) -> None:
        queried, seen = piece.tokens[:, block.rows].flatten(), piece.tokens[:, None, : block.keys]
        by_token = piece.buffers("R", *S.shape[:2], self.R.by_token.shape[1])
        torch.index_select(self.R.by_token, 0, queried, out=by_token.flatten(0, 1))
        by_token.add_(self.R.by_position[block.rows])
        torch.gather(by_token, 2, seen.expand_as(S), out=S)
        by_position = piece.buffers("C", *S.shape)
        torch.index_select(self.C_cut[block.number], 0, queried, out=by_position.flatten(0, 1))
        S.add_(by_position).add_(self.C.by_position[block.rows, : block.keys])

    def receive(self, block: QueryBlock, dS: Float[Tensor, "batch query key"], piece: Piece) -> None:
        queried, seen = piece.tokens[:, block.rows].flatten(), piece.tokens[:, None, : block.keys]
        dR = piece.buffers("dR", *dS.shape[:2], self.R.by_token.shape[1]).zero_()
        dR.scatter_add_(2, seen.expand_as(dS), dS)
        total = self.R.gradient(piece.sums, f"{self.name}.R")
        total.by_token.index_add_(0, queried, dR.flatten(0, 1))
        total.by_position[block.rows] += dR.sum(0)
        dC_token, dC_position = self._dC(block, piece.sums)
        dC_token.index_add_(0, queried, dS.flatten(0, 1))
        dC_position.add_(dS.sum(0))

    def _dC(self, block: QueryBlock, sums: Sums) -> tuple[Tensor, Tensor]:
        """The part of dC by token and by position that the block's queries contribute."""
        name, (vocab, keys) = f"{self.name}.C{block.number}", self.C_cut[block.number].shape
        return sums(f"{name}.token", vocab, keys), sums(f"{name}.position", block.mask.shape[-2], keys)

    def gradient(self, sums: Sums) -> Float[Tensor, "d_model d_model"]:
        """dW from the sums of `receive`."""
        tokens, positions = self.embedded.by_token, self.embedded.by_position
        dR = self.R.gradient(sums, f"{self.name}.R")
        dC_token, dC_position = torch.zeros_like(self.C.by_token), torch.zeros_like(self.C.by_position)
        for block in self.blocks:
            by_token, by_position = self._dC(block, sums)
            dC_token[:, : block.keys] += by_token
            dC_position[block.rows, : block.keys] = by_position
        by_token = dR.by_token @ tokens + dC_token @ positions
        by_position = dR.by_position @ tokens + dC_position @ positions
        return (tokens.T @ by_token + positions.T @ by_position) * BIT
