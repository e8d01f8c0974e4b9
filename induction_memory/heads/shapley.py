"""Shapley values: how n players share the value of a game.

For a game v(S), S a subset of the players N, the value of player i is its mean contribution over all orders of arrival,

    phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S)),      sum_i phi_i = v(N) - v(0),

and the interaction of two players is the mean of their joint contribution beyond the sum of their single ones,

    I_ij = sum over S without i, j of |S|! (n - |S| - 2)! / (n - 1)! * (v(S+ij) - v(S+i) - v(S+j) + v(S)):

negative if one can replace the other (redundant), positive if one needs the other (synergistic). G_ij is the mean joint
contribution, with v(S+ij) - v(S) in the last bracket. I_ij / G_ij is -1 if either player is enough, 1 if both are
needed, and 0 if the contributions add up.

All 2^n subsets are evaluated for up to EXACT players. For more players, orders are drawn at random, each with its
reverse, and the values have a standard error from that sampling (their sum is still v(N) - v(0) exactly).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

EXACT = 10
"""Up to this many players all 2^n coalitions are evaluated."""
ORDERS = 32
"""Number of random orders for more players; half of them are the reverses of the others."""

Evaluate = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Solution:
    """A solved game. All values are linear in v, so each is stored as one sum per sequence, like v."""

    values: Float64[Tensor, "player batch"]
    """Shapley values."""
    total: Float64[Tensor, " batch"]
    """v(N) - v(0)."""
    single: Float64[Tensor, "player batch"]
    """v(N) - v(N - i): what is lost without player i."""
    joint: Float64[Tensor, "player other batch"] | None
    """v(N) - v(N - i - j); None if pairs were not requested."""
    alone: Float64[Tensor, "player batch"]
    """v(i) - v(0)."""
    interaction: Float64[Tensor, "player other batch"] | None
    """I_ij; None if orders were sampled or pairs were not requested."""
    together: Float64[Tensor, "player other batch"] | None
    """G_ij; None in the same cases."""
    drawn: Float64[Tensor, "pair player batch"] | None = None
    """If orders were sampled: the contributions in each drawn order and its reverse, averaged over the two."""


def all_coalitions(n: int) -> Bool[Tensor, "coalition player"]:
    """Every subset; row i has the players whose bits are set in i."""
    return (torch.arange(2**n)[:, None] >> torch.arange(n) & 1).bool()


def shapley(values: Float64[Tensor, "coalition batch"]) -> Float64[Tensor, "player batch"]:
    """The Shapley values of a game given by all its coalitions, in the order of `all_coalitions`."""
    n = (len(values) - 1).bit_length()
    weights = torch.tensor([1 / (n * comb(n - 1, size)) for size in range(n)], dtype=torch.float64)
    coalitions = all_coalitions(n)
    rows = []
    for player in range(n):
        without = (~coalitions[:, player]).nonzero().flatten()
        gain = values[without + 2**player] - values[without]
        rows.append(weights[coalitions[without].sum(1)] @ gain)
    return torch.stack(rows)


def interactions(
    values: Float64[Tensor, "coalition batch"],
) -> tuple[Float64[Tensor, "player other batch"], Float64[Tensor, "player other batch"]]:
    """I_ij and G_ij of every pair; zero on the diagonal."""
    n = (len(values) - 1).bit_length()
    coalitions = all_coalitions(n)
    interaction, together = values.new_zeros(2, n, n, values.shape[1])
    if n < 2:
        return interaction, together
    weights = torch.tensor([1 / ((n - 1) * comb(n - 2, size)) for size in range(n - 1)], dtype=torch.float64)
    for i in range(n):
        for j in range(i):
            without = (~coalitions[:, i] & ~coalitions[:, j]).nonzero().flatten()
            weight = weights[coalitions[without].sum(1)]
            neither, first, second, both = [
                weight @ values[without + 2**i * a + 2**j * b] for b in (0, 1) for a in (0, 1)
            ]
            interaction[i, j] = interaction[j, i] = both - first - second + neither
            together[i, j] = together[j, i] = both - neither
    return interaction, together


def solve(
    n: int,
    evaluate: Evaluate,
    rng: np.random.Generator | None = None,
    orders: int = ORDERS,
    *,
    pairs: bool = True,
) -> Solution:
    """Solve a game of n players. `evaluate` maps [coalition, player] to values [coalition, batch]; it is called
    once."""
    if n <= EXACT:
        values = evaluate(all_coalitions(n))
        full, bits = 2**n - 1, 2 ** torch.arange(n)
        without_two = full - (bits[:, None] | bits[None, :])
        interaction, together = interactions(values) if pairs else (None, None)
        return Solution(
            values=shapley(values),
            total=values[full] - values[0],
            single=values[full] - values[full - bits],
            joint=values[full] - values[without_two] if pairs else None,
            alone=values[bits] - values[0],
            interaction=interaction,
            together=together,
        )
    assert rng is not None, "a game this large is sampled"
    half = np.stack([rng.permutation(n) for _ in range(max(orders // 2, 2))])
    return _sampled(n, evaluate, torch.from_numpy(np.concatenate([half, half[:, ::-1]])), pairs)


def _sampled(n: int, evaluate: Evaluate, orders: Int[Tensor, "order player"], pairs: bool) -> Solution:
    arrived = torch.zeros(len(orders), n + 1, n, dtype=torch.bool)
    arrived[:, 1:] = orders.argsort(1)[:, None, :] <= torch.arange(n)[None, :, None]
    eye = torch.eye(n, dtype=torch.bool)
    without_two = ~(eye[:, None] | eye[None, :]).flatten(0, 1)
    asked = [arrived.flatten(0, 1), eye, ~eye, *([without_two] if pairs else [])]
    unique, where = torch.cat(asked).unique(dim=0, return_inverse=True)
    along, alone, without, *two = evaluate(unique)[where].split([len(part) for part in asked])
    along = along.unflatten(0, (len(orders), n + 1))
    gains = torch.empty(len(orders), n, along.shape[-1], dtype=torch.float64)
    gains.scatter_(1, orders[:, :, None].expand_as(gains), along.diff(dim=1))
    drawn = gains.unflatten(0, (2, -1)).mean(0)
    full, empty = along[0, -1], along[0, 0]
    return Solution(
        values=drawn.mean(0),
        total=full - empty,
        single=full - without,
        joint=full - two[0].unflatten(0, (n, n)) if pairs else None,
        alone=alone - empty,
        interaction=None,
        together=None,
        drawn=drawn,
    )


def participation(shares: Float[np.ndarray, " player"]) -> float:
    """Effective number of players, (sum s)^2 / sum s^2, over players with positive shares; nan if there are none."""
    helping = np.clip(shares, 0, None)
    return float(helping.sum() ** 2 / np.square(helping).sum()) if helping.any() else np.nan


def entropy_number(shares: Float[np.ndarray, " player"]) -> float:
    """Effective number of players, exp of the entropy of the positive shares."""
    helping = shares[shares > 0]
    if helping.size == 0:
        return np.nan
    p = helping / helping.sum()
    return float(np.exp(-(p * np.log(p)).sum()))
