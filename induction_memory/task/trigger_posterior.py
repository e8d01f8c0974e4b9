"""The posterior of which tokens are triggers: sets drawn without replacement, reweighed by evidence.

K successive draws from p without replacement are the first K arrivals of an exponential race in which token i arrives
at a time of rate p_i. At a fixed time tau of the K-th arrival the tokens are independent: a token has arrived before
tau (probability 1 - exp(-p_i tau)), or has not yet (exp(-p_i tau)), and exactly one arrives at tau (density p_i
exp(-p_i tau)). So, with a_i and b_i the likelihoods of the evidence on token i if it is a trigger and if not,

    P(S, evidence) = int d tau  sum_{j in S} a_j p_j e^{-p_j tau}
                                prod_{i in S, i != j} a_i (1 - e^{-p_i tau})  prod_{i not in S} b_i e^{-p_i tau}.

Summed over all sets S of size K this is, at each tau, the coefficient of z^K eps in the product over the tokens of

    b_i e^{-p_i tau}  +  z a_i (1 - e^{-p_i tau} + eps p_i e^{-p_i tau}),

an elementary symmetric polynomial with one member marked. The product is built one token at a time,
and all its terms are positive. The integral is a trapezoid sum after the substitution tau = exp(v - e^{-v}), which
makes both ends vanish doubly exponentially. It converges so fast that a step of 0.25 in v is exact to rounding.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK = 8  # positions in a block: they share one product over the tokens that are current at none of them
UNDERFLOW = 1e-200  # below this a sum may have lost terms that matter


@dataclass(frozen=True)
class Race:
    """The race of the tokens seen at each node of the quadrature over the time of the K-th arrival."""

    k: int
    """K, the size of the set."""
    weight: Float[Tensor, " node"]
    """Quadrature weights."""
    arrived: Float[Tensor, "node token"]
    """Probability that a token has arrived before: 1 - exp(-p_i tau)."""
    waiting: Float[Tensor, "node token"]
    """Probability that it has not: exp(-p_i tau)."""
    arriving: Float[Tensor, "node token"]
    """Density of its arrival just then: p_i exp(-p_i tau)."""


def race(p: Float[Tensor, " token"], k: int, step: float = 0.25) -> Race:
    """Quadrature for K draws without replacement from positive probabilities p.

    The integrand falls at least like exp(-c tau), with c the probability of all but the K - 1 most probable tokens.
    """
    c = p.sort().values[: len(p) - k + 1].sum().item()
    first, last = -3.6, math.log((40 + 4 * k) / c)
    v = torch.linspace(first, last, math.ceil((last - first) / step) + 1, dtype=torch.float64)
    tau = torch.exp(v - torch.exp(-v))
    waiting = torch.exp(-tau[:, None] * p)
    weight = tau * (1 + torch.exp(-v)) * (v[1] - v[0])
    return Race(k, weight, -torch.expm1(-tau[:, None] * p), waiting, p * waiting)


def times(
    product: Float[Tensor, "2 degree *shape"],
    absent: Float[Tensor, "*#shape"],
    present: Float[Tensor, "*#shape"],
    last: Float[Tensor, "*#shape"],
) -> Float[Tensor, "2 degree *shape"]:
    """Multiply polynomials in z (second axis) and eps (first axis) by absent + z (present + eps last)."""
    result = product * absent
    result[:, 1:] += product[:, :-1] * present
    result[1, 1:] += product[0, :-1] * last
    return result


def member_probability(
    race: Race,
    log_member: Float[Tensor, "batch pos token"],
    log_other: Float[Tensor, "batch pos token"],
    current: Int[Tensor, "batch pos"],
    block: int = BLOCK,
) -> Float[Tensor, "batch pos"]:
    """Posterior probability that token `current` is one of the K, at each position; nan if no set is possible.

    `log_member` and `log_other` are the logarithms of a and b up to each position. From one position
    to the next they may change only for tokens that are current at one of the two.
    """
    parts = [
        _marginal(race, *weights, block)
        for weights in zip(log_member.split(4), log_other.split(4), current.split(4), strict=True)  # stay in cache
    ]
    member, total = (torch.cat(sums) for sums in zip(*parts, strict=True))
    lost = (total < UNDERFLOW).any(1)
    if block > 1 and lost.any():
        again = member_probability(race, log_member[lost], log_other[lost], current[lost], block=1)
        return (member / total).index_put((lost,), again)
    return member / total


def _marginal(
    race: Race,
    log_member: Float[Tensor, "batch pos token"],
    log_other: Float[Tensor, "batch pos token"],
    current: Int[Tensor, "batch pos"],
    block: int,
) -> tuple[Float[Tensor, "batch pos"], Float[Tensor, "batch pos"]]:
    """Total weight of the sets with the current token, and of all sets, on a common scale.

    Tokens that are not current anywhere in a block of positions keep their weights there, so their product is computed
    once per block; the few others are multiplied in at each position.
    """
    batch, pos = current.shape
    at = torch.arange(math.ceil(pos / block) * block).clamp(max=pos - 1).reshape(-1, block)
    current = current[:, at]
    a, b = _balance(log_member[:, at], log_other[:, at], race.k)
    busy = torch.zeros(a[:, :, 0].shape, dtype=torch.bool).scatter(-1, current, True)

    product = torch.zeros(2, race.k + 1, *busy.shape[:2], len(race.weight), dtype=torch.float64)
    product[0, 0] = 1
    for token in range(busy.shape[-1]):
        index = torch.full(busy.shape[:2], token)
        factor = _factor(race, index, a[:, :, 0, token], b[:, :, 0, token], ~busy[..., token])
        product = times(product, *factor)

    product = product.unsqueeze(-2).expand(*product.shape[:-1], block, -1)
    is_busy, busiest = busy.int().topk(int(busy.sum(-1).max()))
    for used, index in zip(is_busy.bool().unbind(-1), busiest.unbind(-1), strict=True):
        index = index.unsqueeze(-1).expand(current.shape)
        product = times(
            product, *_factor(race, index, _pick(a, index), _pick(b, index), used.unsqueeze(-1) & (index != current))
        )

    absent, present, last = _factor(
        race, current, _pick(a, current), _pick(b, current), torch.ones_like(current, dtype=torch.bool)
    )
    member = (present * product[1, race.k - 1] + last * product[0, race.k - 1]) @ race.weight
    other = (absent * product[1, race.k]) @ race.weight
    return member.reshape(batch, -1)[:, :pos], (member + other).reshape(batch, -1)[:, :pos]


def _pick(weights: Float[Tensor, "*shape token"], token: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return weights.gather(-1, token.unsqueeze(-1)).squeeze(-1)


def _factor(
    race: Race,
    token: Int[Tensor, "*shape"],
    a: Float[Tensor, "*shape"],
    b: Float[Tensor, "*shape"],
    use: Bool[Tensor, "*shape"],
) -> tuple[Float[Tensor, "*shape node"], Float[Tensor, "*shape node"], Float[Tensor, "*shape node"]]:
    """The factor of a token at every node; 1 where it is not used."""
    a, b = (a * use).unsqueeze(-1), (b * use).unsqueeze(-1)
    absent = race.waiting.T[token] * b + (~use).unsqueeze(-1)
    return absent, race.arrived.T[token] * a, race.arriving.T[token] * a


def _balance(
    log_member: Float[Tensor, "batch block pos token"], log_other: Float[Tensor, "batch block pos token"], k: int
) -> tuple[Float[Tensor, "batch block pos token"], Float[Tensor, "batch block pos token"]]:
    """a and b on a scale that neither overflows nor loses the sets that matter.

    Two kinds of division leave the posterior unchanged: all a of a block by one number, and a and b of one token by
    another. The first number is the K-th largest a / b at the block's first position. The second is chosen per token so
    that the larger of a and b is one. The K tokens with the largest ratio then have weight one.
    """
    ratio = (log_member - log_other).nan_to_num(-math.inf, math.inf, -math.inf)
    first = ratio[:, :, :1]
    pivot = first.topk(k).values[..., -1:]
    largest = first.where(first.isfinite(), -math.inf).amax(-1, keepdim=True)
    pivot = largest.where(pivot == math.inf, pivot).nan_to_num(0, 0, 0)
    ratio = ratio - pivot
    possible = (log_member > -math.inf) | (log_other > -math.inf)
    return ratio.clamp(max=0).exp() * possible, (-ratio).clamp(max=0).exp() * possible
