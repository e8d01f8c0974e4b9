r"""Appendix B.3 term by term: the three parts of W_K2's step and the four parts of W_K1's, exactly.

With orthonormal embeddings all of them follow from the tables u[t_q, t] = P(z_t = y | t_q) and v[t_q, t] = 1{z_t = q}
of `constants.py`. Write c[t_q, t] for the running mean of v up to t minus its mean over t: the weight of Phi_1 w_E(q)
in x_{t,1} - x_bar_1. The paper's means over k of Delta_{k,j}, read with Phi_1 w_E(j), are sums over a set S of
positions,

    1/N sum_k Delta^S_{k,j}  ->  sum_{t_q} omega(t_q) sum_{t in S} u c  -  1/N 1/(T - 1) sum_{t_q} sum_{t in S} c,

with S = {t_o} for Delta^o, {t_o - 1, T} for Delta^q and the rest for Delta^r. omega gives each label the same weight
1/N: (N - 1)/N shared by t_q < T - 1 (there y != q), 1/N at t_q = T - 1 (there y = q). If y = q then t_o = T, and T
belongs to Delta^o. The weights of all tokens in x_{t,1} - x_bar_1 sum to zero, so the mean over i != j is -1/(N - 1) of
this.

For W_K1 the vectors A, B, C, D are combinations of positions p_s. One row per t, averaged over k:

    A = E[u_t 1{t_q <= t} (p_{t_q} - p_bar_{1:t})]           B = 1/N E[1{t_q <= t} (p_{t_q} - p_bar_{1:t})]
    C = E[mean_t u  1{t_q <= t} (p_{t_q} - p_bar_{1:t})]     D = B.
"""

from collections.abc import Callable
from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.theory import constants
from induction_memory.theory.checks import Check, Result, at_least, at_most, column, slope, within
from induction_memory.theory.circuit import Circuit, Embeddings, logits, orthonormal
from induction_memory.theory.sequences import sample

Part = Literal["o", "q", "r"]
T = 32
VOCABULARIES = (16, 32, 64, 128, 256, 512)


def match_terms(N: int, T: int) -> dict[Part, float]:
    """Mean over k of Delta^o, Delta^q and Delta^r, read with Phi_1 w_E(j)."""
    u, running = constants.label_law(N, T), constants.running_mean(constants.trigger_places(T))
    c = running - running.mean(-1, keepdim=True)
    weight = torch.full((T - 1, 1), (N - 1) / N / (T - 2), dtype=torch.float64)
    weight[-1] = 1 / N
    value = weight * u * c - c / (N * (T - 1))
    rows = torch.arange(T - 1)
    part = torch.full((T - 1, T), 2)
    part[rows, rows] = 1  # t_q = t_o - 1
    part[:, -1] = 1
    part[rows, rows + 1] = 0  # t_o, which is T if y = q
    return {"o": value[part == 0].sum().item(), "q": value[part == 1].sum().item(), "r": value[part == 2].sum().item()}


def position_terms(N: int, T: int) -> dict[str, Float[Tensor, "query key"]]:
    """A, B, C, D in the basis of positions: row t, column s."""
    u = constants.label_law(N, T)
    seen = torch.ones(T, T, dtype=torch.float64).tril()  # [t, s]: s <= t
    t = torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)

    def term(worth: Float[Tensor, "first pos"]) -> Float[Tensor, "query key"]:
        by_first = torch.zeros(T, T, dtype=torch.float64)
        by_first[:, : T - 1] = worth.mT / (T - 1)  # [t, t_q]
        by_first = by_first * seen
        return by_first - by_first.sum(-1, keepdim=True) * seen / t

    chance = term(torch.full_like(u, 1 / N))
    return {"A": term(u), "B": chance, "C": term(u.mean(-1, keepdim=True).expand_as(u)), "D": chance}


def theorem_terms(
    match: Callable[[int, int], dict[Part, float]] = match_terms,
    position: Callable[[int, int], dict[str, Float[Tensor, "query key"]]] = position_terms,
) -> Result:
    r"""The terms of Appendix B.3 one by one, exactly, for $T = 32$ and $N$ from 16 to 512. In the step on $W_K^2$ the
    mean of $\Delta^o$ over labels carries the signal and tends to $\gamma_T$ with $N$. $\Delta^q$ is $O(1/N)$, as
    stated. $\Delta^r$ is far below the paper's crude bound $2CT/N$: its mean is $O(1/N)$ times a number below
    $\gamma_T$. In the step on $W_K^1$ the rows take $t \leq T - 2$, because the printed $A$ is wrong at $t = T - 1$
    (the section before). There $A$ is as printed. $B$ and $D$ are equal, so they cancel. $C$ is not as printed: given
    $y = k$ the output stands in the sequence wherever $t_q$ is, so $r_k \geq 1/T$ for every $t_q$, and because $t_q$ is
    uniform the sum over $t_q \leq t$ of $p_{t_q} - \bar p_{1:t}$ vanishes. $C = 0$ for $t < T - 1$, and the factor
    $(T-1)/T$ of the final display is 1."""
    records = [{"N": n, **match(n, T), "bound on r": 2 * T / n} for n in VOCABULARIES]
    table = pd.DataFrame(records)
    n, o, q, r = (column(table, name) for name in ("N", "o", "q", "r"))
    size = abs(q) + abs(r)
    rows = [
        within("mean of Delta^o for N = 512 over gamma_T", 1.0, float(o[-1]) / constants.gamma(T), 0.1),
        at_most("mean of Delta^q: log-log slope in N", -0.9, slope(n, abs(q))),
        at_most("mean of Delta^r: log-log slope in N", -0.9, slope(n, abs(r))),
        at_most("|Delta^q| + |Delta^r| over Delta^o, N = 512", 0.1, float(size[-1] / o[-1])),
        at_most("|Delta^r| over its bound 2T/N (C = 1), largest over N", 0.05, float((abs(r) * n / (2 * T)).max())),
        *_position_checks(position(64, T), position(512, T)),
    ]
    return Result(tuple(rows), {"terms": table})


def _position_checks(terms: dict[str, Tensor], more: dict[str, Tensor]) -> list[Check]:
    """A to D for N = 64 and N = 512, at the positions 2 .. T - 2."""
    inside = slice(1, T - 2)
    t = torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)
    seen = torch.ones(T, T, dtype=torch.float64).tril()
    before = torch.eye(T, dtype=torch.float64).roll(1, 0)
    before[0] = 0
    printed = ((before - seen / t) / (T - 1))[inside]

    def away(term: Tensor, expected: Tensor) -> float:
        return ((term[inside] - expected).abs().max() / printed.abs().max()).item()

    found = away(terms["A"], printed)
    printed_C = T * away(terms["C"], printed / T)
    same = (terms["B"] - terms["D"]).abs().max().item()
    deviation = "largest deviation over largest entry"
    return [
        at_most(f"A against P(t_q = t-1) (p_{{t-1}} - mean), N = 64: {deviation}", 0.05, found),
        within("that for N = 64 over that for N = 512: it is O(1/N)", 8.0, found / away(more["A"], printed), 0.05),
        at_most("B - D: largest entry", 1e-15, same),
        at_most(f"C against P(t_q = t-1)/T (p_{{t-1}} - mean) as printed: {deviation}", 0.05, printed_C, slip=True),
        at_most("C for t < T-1: largest entry over that of A", 1e-12, away(terms["C"], torch.zeros_like(printed))),
    ]


def trigger_prediction(goal: float = 0.5) -> Result:
    r"""Appendix B.3.3: "the output is likely to predict the trigger itself", with $W_O^2$ and $W_K^2$ learned and
    $W_K^1 = 0$. The table has the share of sequences whose largest logit is the trigger's, for growing strength
    $\alpha'$ of the second memory, with $\alpha = 10$, $N = 64$, $T = 32$ and orthonormal embeddings. $\alpha' = 6.5$
    is what the theorem's own two steps give. Layer 2 attends most to $t_q$, where the mean over the tokens so far holds
    most of the trigger. The sentence is right from there on. With a weak second memory the trigger is the most likely
    single answer, in less than half of the sequences."""
    e, generator = orthonormal(64, T), torch.Generator().manual_seed(4)
    data = sample(64, T, 4096, generator)
    records = []
    for strength in (0.0, 1.0, 3.0, 6.5, 10.0, 30.0, 100.0):
        predicted = logits(e, two_memories(e, 10.0, strength), data.tokens).argmax(-1)
        trigger = ((predicted == data.triggers) & (data.triggers != data.labels)).double().mean().item()
        right = (predicted == data.labels).double().mean().item()
        records.append({"strength": strength, "trigger": trigger, "right": right})
    table = pd.DataFrame(records)
    shares = [float(column(table, "trigger", strength=strength)[0]) for strength in (1.0, 6.5, 100.0)]
    rows = (
        at_least("share that predicts the trigger, alpha' = 1", goal, shares[0], slip=True),
        at_least("share that predicts the trigger, alpha' = 6.5 (after the theorem's two steps)", goal, shares[1]),
        at_least("share that predicts the trigger, alpha' = 100 (saturated)", 0.9, shares[2]),
        at_most("share that predicts the output, largest over alpha'", 0.15, float(column(table, "right").max())),
    )
    return Result(rows, {"strengths": table})


def two_memories(e: Embeddings, alpha: float, strength: float) -> Circuit:
    """W_O2 and W_K2 as they should be, with the given scores of a stored pair, and W_K1 = 0."""
    W_O2 = alpha * e.w_U.mT @ e.w_E @ e.W_V2.mT
    W_K2 = strength * (e.w_E @ e.Phi_1.mT).mT @ e.w_E
    return Circuit(W_O2, W_K2, torch.zeros_like(W_O2))
