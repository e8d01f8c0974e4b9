"""Theorem 3, step by step: what each gradient step writes, as Appendix B.3 predicts it and exactly.

With orthonormal embeddings and p_hat = 1/N the three gradient steps depend only on two tables over t_q = 1 .. T - 1:

    u[t_q, t] = P(z_t = y | t_q)        v[t_q, t] = 1{z_t = q}, a function of t_q.

Write E for the mean over t_q, v_t for the running mean of v over s <= t, and alpha, alpha' for the contrasts
(diagonal minus off-diagonal) of the first two memories. The gradient steps of size eta then give, exactly,

    W_O2:  alpha  = eta/(N T) c_0,   c_0 = sum_t D_t,  and c_1 = sum_t D_t sum_{s >= t} 1/s through Phi_1,
                    D_t = P(z_t = k | y = k) - P(z_t = j | y = k) = (N E[u_t] - 1) / (N - 1)
    W_K2:  alpha' = alpha eta/(N T) g,  g = N/(N - 1) E[ sum_t u_t (v_t - mean_t v_t) ]
    W_K1:  coefficient of p_s p_t^T = eta alpha alpha' / (T t) E[ (u_t - mean u) (v[s] - v_t) ]  for s <= t.

The paper's 1, tau, gamma_T and P(t_q = t - 1)/t are their leading terms. The second half of W_K2's gradient, the mean
over all y, vanishes: sum_k 1{z_t = k} = 1 leaves sum_t (x_{t,1} - x_bar) = 0. So the only noise in W_K2 is
-1/(N - 1) of the signal. The paper bounds it by O(T/N).

The three parts of W_K2's step and the four parts of W_K1's follow from the same tables. Write c[t_q, t] for the running
mean of v up to t minus its mean over t: the weight of Phi_1 w_E(q) in x_{t,1} - x_bar_1. The paper's means over k of
Delta_{k,j}, read with Phi_1 w_E(j), are sums over a set S of positions,

    1/N sum_k Delta^S_{k,j}  ->  sum_{t_q} omega(t_q) sum_{t in S} u c  -  1/N 1/(T - 1) sum_{t_q} sum_{t in S} c,

with S = {t_o} for Delta^o, {t_o - 1, T} for Delta^q and the rest for Delta^r. omega gives each label the same weight
1/N: (N - 1)/N shared by t_q < T - 1 (there y != q), 1/N at t_q = T - 1 (there y = q). If y = q then t_o = T, and T
belongs to Delta^o. The weights of all tokens in x_{t,1} - x_bar_1 sum to zero, so the mean over i != j is -1/(N - 1) of
this.

For W_K1 the vectors A, B, C, D are combinations of positions p_s. One row per t, averaged over k:

    A = E[u_t 1{t_q <= t} (p_{t_q} - p_bar_{1:t})]           B = 1/N E[1{t_q <= t} (p_{t_q} - p_bar_{1:t})]
    C = E[mean_t u  1{t_q <= t} (p_{t_q} - p_bar_{1:t})]     D = B.
"""

from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.paper.theory.checks import Result, agree, column, slope
from induction_memory.paper.theory.circuit import (
    Circuit,
    Embeddings,
    TriggerSequences,
    accuracy,
    contrast,
    enumerate_all,
    gaussian,
    gradient,
    logits,
    mean_and_error,
    orthonormal,
    output_step,
    recalls,
    sample,
    sampled_gradients,
    second_attention,
    zeros,
)
from induction_memory.paper.verdicts import Measurement, at_least, at_most, known_slip, sampled, within

N, T = 64, 32
SMALL = 1e-3
"""With memories this weak, the predictions stay at 1/N, as the paper assumes."""
VOCABULARIES = (16, 32, 64, 128, 256, 512)


def tau(T: int) -> float:
    """The paper's tau = E[sum_{t >= t_o} 1/t], with t_o uniform on 2 .. T."""
    return 1 - (_harmonic(T) - 1) / (T - 1)


def gamma(T: int) -> float:
    """The paper's gamma_T = E[1/t_o - 1/T sum_{t >= t_o - 1} 1/t] - 1/T^2, with t_o uniform on 2 .. T."""
    return (_harmonic(T) - 1) / (T - 1) - (1 + 1 / T) / T - 1 / T**2


def position_signal(T: int) -> Float[Tensor, "key query"]:
    """The paper's W_K1 over eta alpha alpha': (T - 1) / (T^2 t) P(t_q = t - 1) (1{s = t - 1} - 1/t 1{s <= t})."""
    t = torch.arange(1, T + 1, dtype=torch.float64)
    previous = torch.eye(T, dtype=torch.float64).roll(-1, 0)
    previous[-1] = 0
    signal = (T - 1) / (T**2 * t) / (T - 1) * (previous - 1 / t)
    signal[:, 0] = 0  # t = 1 has no position before it
    return signal.triu()


def label_law(N: int, T: int) -> Float[Tensor, "first pos"]:
    """u: the output is at t_o, at a free position by chance, and at a trigger's position only if o = q."""
    u = torch.full((T - 1, T), 1 / (N - 1), dtype=torch.float64)
    u[:, -1] = 0
    rows = torch.arange(T - 1)
    u[rows, rows] = 0
    u[rows, rows + 1] = 1
    u[-1] = 0
    u[-1, -2:] = 1
    return u


def trigger_places(T: int) -> Float[Tensor, "first pos"]:
    """v: the trigger is at t_q and at T."""
    v = torch.eye(T, dtype=torch.float64)[:-1]
    v[:, -1] = 1
    return v


def output_constants(N: int, T: int) -> tuple[float, float]:
    """c_0 and c_1, whose leading terms are 1 and tau."""
    excess = (N * label_law(N, T).mean(0) - 1) / (N - 1)
    tail = (1 / torch.arange(1, T + 1, dtype=torch.float64)).flip(0).cumsum(0).flip(0)
    return excess.sum().item(), (excess * tail).sum().item()


def match_constant(N: int, T: int) -> float:
    """g, whose leading term is gamma_T."""
    running = running_mean(trigger_places(T))
    centred = running - running.mean(-1, keepdim=True)
    return N / (N - 1) * (label_law(N, T) * centred).sum(-1).mean().item()


def position_constants(N: int, T: int) -> Float[Tensor, "key query"]:
    """The exact W_K1 in units of eta alpha alpha', to compare with `position_signal`."""
    u, v = label_law(N, T), trigger_places(T)
    worth = u - u.mean(-1, keepdim=True)
    expected = worth.mT @ v / (T - 1) - (worth * running_mean(v)).mean(0).unsqueeze(-1)  # [query t, key s]
    t = torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)
    return (expected / (T * t)).mT.triu()


def attended_content(N: int, T: int) -> dict[str, float]:
    """a_{k,j,i}: the weight of Phi_1 w_E(i) in E[x_{t_o,1} - x_bar_1 | y = k, q = j], by the paper's cases.

    The fourth case is averaged over k != j, as in the paper. gamma here is conditioned on k != j, hence t_o < T.
    """
    t_o = torch.arange(2, T, dtype=torch.float64)
    tail = torch.tensor([sum(1 / t for t in range(int(o) - 1, T + 1)) for o in t_o], dtype=torch.float64)
    own = (1 / t_o - tail / T).mean().item() - 1 / T**2
    return {
        "j != k, i = j": own,
        "i = j = k": 2 / T - 1 / (T * (T - 1)) - 2 / T**2,
        "i != j = k": (T - 2) / (T * (N - 1)) - (T - 2) * (1 + 1 / (T - 1) + 1 / T) / (T * (N - 1)),
        "i != j, j != k": -own / (N - 1),
    }


def running_mean(v: Float[Tensor, "first pos"]) -> Float[Tensor, "first pos"]:
    return v.cumsum(-1) / torch.arange(1, v.shape[-1] + 1, dtype=v.dtype)


def _harmonic(T: int) -> float:
    return sum(1 / t for t in range(1, T + 1))


def theorem_data() -> Result:
    r"""Theorem 3 is about sequences of the bigram task with $K = 1$ and uniform distributions in which $z_T$ is the
    trigger's second occurrence. All of them are enumerated from the task's definition. $t_q$ is exactly uniform on
    $\{1, \dots, T-1\}$. So $t_o = t_q + 1$ is not "concentrated around $T/2$", and $\gamma_T \approx \log T / T$. The
    "spurious positional mixture" $\bar p$ of Appendix B.3.2 is then $\frac1T$ times the mean over $t > 1$ of $\frac1t
    \sum_{s \le t} p_s$, less $p_1$: it is small except at $p_1$. Given $y = k$ the trigger is *not* uniform: $P(q = k
    \mid y = k) = 1/(T-1)$. The two agree only when $T = N + 1$; elsewhere the paper's $P(q = j \mid y = k) = 1/N$ is
    off by a factor $N/(T-1)$ in one class out of $N$."""
    n, t = 4, 6
    data = enumerate_all(n, t)
    law = torch.bincount(data.first, data.weights, t)[1:]
    same = data.weights[data.labels == data.triggers].sum().item()
    free = _free_tokens_are_uniform(data, n)
    uneven = (law - 1 / (t - 1)).abs().max().item()
    places = torch.arange(2, t + 1, dtype=torch.float64)
    spread = ((law * places.square()).sum() - (law * places).sum().square()).sqrt().item()
    running = torch.ones(t, t, dtype=torch.float64).tril() / torch.arange(1, t + 1).unsqueeze(-1)
    mixture = law @ running[1:] - running.mean(0)
    away = (mixture - (running[1:].mean(0) - running[0]) / t).abs().max().item()
    rows = (
        at_most("t_q is uniform on 1..T-1: largest |P(t_q = t) - 1/(T-1)|", 1e-12, uneven),
        known_slip(at_most("t_o is concentrated around T/2: its standard deviation over T", 0.1, spread / t)),
        within("that of t_o over that of the uniform law on 2..T", 1.0, spread / ((t * (t - 2)) / 12) ** 0.5, 1e-9),
        at_most("p_bar against 1/T (mean over t > 1 of the running means, less p_1): deviation", 1e-12, away),
        at_most("length of p_bar in 1/T, orthonormal positions", 1.0, t * mixture.norm().item()),
        known_slip(within("P(q = k | y = k), as printed 1/N", 1 / n, same, 1e-6)),
        within("P(q = k | y = k) = 1/(T-1)", 1 / (t - 1), same, 1e-9),
        at_most("other tokens are uniform without q, for any y: largest deviation", 1e-12, free),
    )
    table = pd.DataFrame({"t_q": range(1, t), "probability": law.tolist()})
    return Result(rows, {"positions": table})


def theorem_step_1() -> Result:
    r"""Theorem 3's first step writes the output memory, and a spurious copy of it through $\Phi_1$:

    $$
    W_O^2 = \frac{\eta}{NT} \sum_k w_U(k) (W_V^2 (w_E(k) - \bar w_E))^\top + \frac{\eta \tau}{NT} \sum_k w_U(k)
    (W_V^2 \Phi_1 (w_E(k) - \bar w_E))^\top
    $$

    The form is exact, with $c_0$ and $c_1$ of `theorem.py` in place of $1$ and $\tau$: the other tokens of the
    sequence are not quite independent of $y$. It is checked first on an enumerated distribution with random embeddings,
    where the sums are exact, then on streamed samples with orthonormal embeddings."""
    data, e = enumerate_all(4, 5), gaussian(4, 5, 24, torch.Generator().manual_seed(0))
    by_autograd = -gradient(e, zeros(24), "W_O2", data, partial(logits, positions="everywhere", both_streams=True))
    closed_form = output_step(e, 1.0, *output_constants(4, 5))
    exactly = agree("closed form of W_O2 against autograd, N = 4, T = 5 enumerated", closed_form, by_autograd)

    e, generator = orthonormal(N, T), torch.Generator().manual_seed(1)
    start = zeros(e.shape[-1])
    steps = -sampled_gradients(e, start, "W_O2", generator, partial(logits, both_streams=True)) * N * T
    read = e.w_U @ steps @ e.W_V2
    direct = mean_and_error(contrast(read @ e.w_E.mT))
    spurious = mean_and_error(contrast(read @ e.Phi_1 @ e.w_E.mT))
    c_0, c_1 = output_constants(N, T)
    after = replace(start, W_O2=steps.mean(0))
    rows = (
        exactly,
        within("diagonal of W_O2 in eta/(NT): 1 as printed", 1.0, direct[0], 0.05),
        sampled("diagonal of W_O2 in eta/(NT): exact c_0", c_0, *direct),
        within("spurious diagonal through Phi_1 in eta/(NT): tau as printed", tau(T), spurious[0], 0.05),
        sampled("spurious diagonal through Phi_1 in eta/(NT): exact c_1", c_1, *spurious),
        at_least("recall of W_O2 after its step", 1.0, recalls(e, after)["W_O2"]),
        at_most("accuracy after the first step stays near chance", 0.15, accuracy(e, after, generator)),
    )
    return Result(rows, {"scores": pd.DataFrame((read.mean(0) @ e.w_E.mT).numpy())})


def theorem_step_2() -> Result:
    r"""Theorem 3's second step writes the memory of the induction head, each token with its remapped self:

    $$(\Phi_1 w_E(i))^\top W_K^2 w_E(j) \approx \frac{\alpha \eta}{TN} \{\gamma_T \, 1\{i = j\} + O(T/N)\}$$

    The paper's last display has $\Omega(1/T)$ in the place of $\gamma_T$. The four cases of $a_{k,j,i}$ are exact on an
    enumerated distribution. The total signal is the exact $g(N, T)$ of `theorem.py`, of which $\gamma_T$ is
    the leading term. The bound $O(T/N)$ on the noise is far from tight: the noise is exactly $-1/(N-1)$ of the signal,
    because the unconditional half of the gradient sums to zero, and $W_K^2$ is recalled even for $N < T$."""
    data = enumerate_all(4, 6)
    measured_cases = _measured_cases(data, 4, 6)
    worst = max(abs(measured_cases[name] - value) for name, value in attended_content(4, 6).items())

    e, generator = orthonormal(N, T), torch.Generator().manual_seed(2)
    alpha = SMALL * output_constants(N, T)[0]
    start = replace(zeros(e.shape[-1]), W_O2=output_step(e, SMALL * N * T, *output_constants(N, T)))
    steps = -sampled_gradients(e, start, "W_K2", generator) * N * T / alpha
    tables = (e.w_E @ e.Phi_1.mT) @ steps @ e.w_E.mT
    measured = mean_and_error(contrast(tables))
    diagonal = tables.diagonal(dim1=-2, dim2=-1)
    off = (tables.sum((-2, -1)) - diagonal.sum(-1)) / (N * (N - 1))
    noise = (off.mean() / diagonal.mean()).item()
    recalled = recalls(e, replace(start, W_K2=steps.mean(0)))["W_K2"]
    rows = (
        at_most("a_{k,j,i} in the paper's four cases, N = 4, T = 6 enumerated: largest error", 1e-9, worst),
        within("signal of W_K2 in alpha eta/(NT): gamma_T as printed", gamma(T), measured[0], 0.1),
        sampled("signal of W_K2 in alpha eta/(NT): exact g(N, T)", match_constant(N, T), *measured),
        within("off-diagonal over diagonal of W_K2: exactly -1/(N-1)", -1 / (N - 1), noise, 1e-5),
        at_least("gamma_T is positive: T gamma_T", 1.0, T * gamma(T)),
        at_least("recall of W_K2 after its step", 1.0, recalled),
        at_least("g(N, T) stays positive when N < T (N = 8, T = 32)", 0.0, match_constant(8, 32)),
    )
    return Result(rows, {"scores": pd.DataFrame(tables.mean(0).numpy())})


def theorem_step_3() -> Result:
    r"""Theorem 3's third step writes the previous-token memory, weaker at later positions:

    $$
    p_s^\top W_K^1 p_t \approx \frac{\eta \alpha \alpha' (T-1)}{T^2 t} \Big\{P(t_q = t-1) \Big(1\{s = t-1\} -
    \frac1t 1\{s \in [t]\}\Big) + O(1/N)\Big\}
    $$

    with $P(t_q = t - 1) = 1/(T-1)$. It holds for every $t$ except one. At $t = T - 1$ the token is the trigger itself
    when $o = q$, and then $z_t = k$ with probability one, where the paper's $A_{t,k}$ has $1/N$. So position $T - 1$
    attends to itself almost as strongly as to $T - 2$, and more strongly if $N$ is small against $T$. (The displays
    also leave out that $z_T = q$ matches itself. At $t = T$ the terms in question nearly cancel. Rows are keys, the
    transpose of Section 4's $W_K^1 = \sum_t p_t p_{t-1}^\top$.)"""
    data, e = enumerate_all(4, 6), orthonormal(4, 6)
    by_autograd = e.p @ -gradient(e, two_memories(e, SMALL, SMALL), "W_K1", data) @ e.p.mT / SMALL**2
    exactly = agree("exact W_K1 against autograd, N = 4, T = 6 enumerated", position_constants(4, 6), by_autograd, 5e-3)

    e, generator = orthonormal(N, T), torch.Generator().manual_seed(3)
    start, exact = two_memories(e, SMALL, SMALL), position_constants(N, T)
    unit = torch.arange(1, T + 1) * T**2  # tables are in eta alpha alpha' / (T^2 t)
    tables = e.p @ -sampled_gradients(e, start, "W_K1", generator) / SMALL**2 @ e.p.mT * unit
    printed, truth = position_signal(T) * unit, exact * unit
    previous, own = tables.diagonal(1, -2, -1), tables.diagonal(0, -2, -1)[:, 1:]
    error = previous.std(0) / len(previous) ** 0.5
    z_scores = ((previous.mean(0) - truth.diagonal(1)) / error).square().mean().item()
    tie = mean_and_error(own[:, -2] / previous[:, -2])
    deviation = (previous.mean(0) / printed.diagonal(1) - 1).abs().max().item()
    recalled = recalls(e, replace(start, W_K1=e.p.mT @ exact @ e.p))["W_K1"]
    along = "previous-position scores over t against the"
    rows = (
        exactly,
        at_most(f"{along} printed formula: largest relative deviation", 0.1, deviation),
        at_most(f"{along} exact ones: mean squared z-score", 3.0, z_scores),
        known_slip(within("own over previous score at t = T-1, as printed", _tie(printed), tie[0], 0.5)),
        sampled("own over previous score at t = T-1, exact", _tie(truth), *tie),
        at_least("recall of the exact W_K1 (causal)", 1.0, recalled),
    )
    table = pd.DataFrame(
        {
            "t": range(2, T + 1),
            "printed": printed.diagonal(1).tolist(),
            "exact": truth.diagonal(1).tolist(),
            "measured": previous.mean(0).tolist(),
            "error": error.tolist(),
            "own exact": truth.diagonal()[1:].tolist(),
            "own measured": own.mean(0).tolist(),
        }
    )
    return Result(rows, {"scores": pd.DataFrame(tables.mean(0).triu().numpy()), "constants": table})


def _tie(table: Float[Tensor, "key query"]) -> float:
    """The score of the own position divided by that of the previous one, at t = T - 1."""
    return (table[-2, -2] / table[-3, -2]).item()


def _free_tokens_are_uniform(data: TriggerSequences, n: int) -> float:
    """Largest deviation from 1/(N-1) of a token away from t_q, t_o and T, given q, y and t_q."""
    worst = 0.0
    for q, y, t_q in torch.stack([data.triggers, data.labels, data.first], 1).unique(dim=0).tolist():
        rows = (data.triggers == q) & (data.labels == y) & (data.first == t_q)
        weights = data.weights[rows] / data.weights[rows].sum()
        for t in set(range(1, data.tokens.shape[1])) - {t_q, t_q + 1}:
            law = torch.bincount(data.tokens[rows, t - 1], weights, n)
            uniform = (torch.arange(n) != q).double() / (n - 1)
            worst = max(worst, (law - uniform).abs().max().item())
    return worst


def _measured_cases(data: TriggerSequences, n: int, t: int) -> dict[str, float]:
    """E[x_{t_o,1} - x_bar_1 | ..] in the basis Phi_1 w_E(i), from the enumerated sequences."""
    first_stream = torch.nn.functional.one_hot(data.tokens, n).double().cumsum(1) / torch.arange(1, t + 1).unsqueeze(-1)
    content = first_stream[torch.arange(len(data.labels)), data.first] - first_stream.mean(1)

    def mean(rows: Bool[Tensor, " batch"]) -> Float[Tensor, " vocab"]:
        return (data.weights[rows].unsqueeze(-1) * content[rows]).sum(0) / data.weights[rows].sum()

    j = 0
    apart, together = (mean((data.triggers == j) & same) for same in (data.labels != j, data.labels == j))
    return {
        "j != k, i = j": apart[0].item(),
        "i = j = k": together[0].item(),
        "i != j = k": together[1].item(),
        "i != j, j != k": apart[1].item(),
    }


Part = Literal["o", "q", "r"]


def match_terms(N: int, T: int) -> dict[Part, float]:
    """Mean over k of Delta^o, Delta^q and Delta^r, read with Phi_1 w_E(j)."""
    u, running = label_law(N, T), running_mean(trigger_places(T))
    c = running - running.mean(-1, keepdim=True)
    weight = torch.full((T - 1, 1), (N - 1) / N / (T - 2), dtype=torch.float64)
    weight[-1] = 1 / N
    value = weight * u * c - c / (N * (T - 1))
    rows = torch.arange(T - 1)
    part = np.full((T - 1, T), "r")
    part[rows, rows] = "q"  # t_q = t_o - 1
    part[:, -1] = "q"
    part[rows, rows + 1] = "o"  # t_o, which is T if y = q
    return {name: value[torch.tensor(part == name)].sum().item() for name in ("o", "q", "r")}


def position_terms(N: int, T: int) -> dict[str, Float[Tensor, "query key"]]:
    """A, B, C, D in the basis of positions: row t, column s."""
    u = label_law(N, T)
    seen = torch.ones(T, T, dtype=torch.float64).tril()  # [t, s]: s <= t
    t = torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)

    def term(worth: Float[Tensor, "first pos"]) -> Float[Tensor, "query key"]:
        by_first = torch.zeros(T, T, dtype=torch.float64)
        by_first[:, : T - 1] = worth.mT / (T - 1)  # [t, t_q]
        by_first = by_first * seen
        return by_first - by_first.sum(-1, keepdim=True) * seen / t

    chance = term(torch.full_like(u, 1 / N))
    return {"A": term(u), "B": chance, "C": term(u.mean(-1, keepdim=True).expand_as(u)), "D": chance}


def theorem_terms() -> Result:
    r"""Appendix B.3 bounds the terms of the steps one by one. Here they are exact, for $T = 32$ and $N$ from 16 to 512.
    In the step on $W_K^2$ the mean of $\Delta^o$ over labels carries the signal and tends to $\gamma_T$ with $N$.
    $\Delta^q$ is $O(1/N)$, as stated. $\Delta^r$ is far below the paper's crude bound $2CT/N$: its mean is $O(1/N)$
    times a number below $\gamma_T$. In the step on $W_K^1$ the rows take $t \leq T - 2$, because the printed $A$ is
    wrong at $t = T - 1$ (the section before). There $A$ is as printed. $B$ and $D$ are equal, so they cancel. $C$ is
    not as printed: given $y = k$ the output stands in the sequence wherever $t_q$ is, so $r_k \geq 1/T$ for every
    $t_q$, and because $t_q$ is uniform the sum over $t_q \leq t$ of $p_{t_q} - \bar p_{1:t}$ vanishes. $C = 0$ for $t <
    T - 1$, and the factor $(T-1)/T$ of the final display is 1."""
    records = [{"N": n, **match_terms(n, T), "bound on r": 2 * T / n} for n in VOCABULARIES]
    table = pd.DataFrame(records)
    n, o, q, r = (column(table, name) for name in ("N", "o", "q", "r"))
    size = abs(q) + abs(r)
    rows = [
        within("mean of Delta^o for N = 512 over gamma_T", 1.0, float(o[-1]) / gamma(T), 0.1),
        at_most("mean of Delta^q: log-log slope in N", -0.9, slope(n, abs(q))),
        at_most("mean of Delta^r: log-log slope in N", -0.9, slope(n, abs(r))),
        at_most("|Delta^q| + |Delta^r| over Delta^o, N = 512", 0.1, float(size[-1] / o[-1])),
        at_most("|Delta^r| over its bound 2T/N (C = 1), largest over N", 0.05, float((abs(r) * n / (2 * T)).max())),
        *_position_checks(position_terms(64, T), position_terms(512, T)),
    ]
    return Result(tuple(rows), {"terms": table})


def _position_checks(terms: dict[str, Tensor], more: dict[str, Tensor]) -> list[Measurement]:
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
        known_slip(at_most(f"C against P(t_q = t-1)/T (p_{{t-1}} - mean) as printed: {deviation}", 0.05, printed_C)),
        at_most("C for t < T-1: largest entry over that of A", 1e-12, away(terms["C"], torch.zeros_like(printed))),
    ]


def trigger_prediction() -> Result:
    r"""Appendix B.3.3: "the output is likely to predict the trigger itself", with $W_O^2$ and $W_K^2$ learned and
    $W_K^1 = 0$. The table has the share of sequences whose largest logit is the trigger's, for growing strength
    $\alpha'$ of the second memory, with $\alpha = 10$, $N = 64$, $T = 32$ and orthonormal embeddings. $\alpha' = 6.5$
    is what the theorem's own two steps give. Layer 2 attends most to $t_q$, where the mean over the tokens so far holds
    most of the trigger. The sentence is right from there on. With a weak second memory, which it does not assume, the
    trigger is the most likely single answer in less than half of the sequences. Before it the paper says that layer 2
    attends "to all tokens starting at the first occurrence of the trigger". The attention on these tokens, and how many
    of them it is effectively spread over, are measured too: from 6.5 to 100 it moves from all tokens to $t_q$ alone."""
    e, generator = orthonormal(64, T), torch.Generator().manual_seed(4)
    data = sample(64, T, 4096, generator)
    records = []
    for strength in (0.0, 1.0, 3.0, 6.5, 10.0, 30.0, 100.0):
        predicted = logits(e, two_memories(e, 10.0, strength), data.tokens).argmax(-1)
        trigger = ((predicted == data.triggers) & (data.triggers != data.labels)).double().mean().item()
        right = (predicted == data.labels).double().mean().item()
        a = second_attention(e, two_memories(e, 10.0, strength), data.tokens)
        seen = torch.arange(1, T + 1) >= data.first.unsqueeze(-1)
        within_seen = a * seen / (a * seen).sum(-1, keepdim=True)
        spread = (1 / within_seen.square().sum(-1) / seen.sum(-1)).mean().item()
        on = (a * seen).sum(-1).mean().item()
        records.append({"strength": strength, "trigger": trigger, "right": right, "from t_q on": on, "over": spread})
    table = pd.DataFrame(records)
    shares = [float(column(table, "trigger", strength=strength)[0]) for strength in (1.0, 6.5, 100.0)]

    def on_seen(strength: float) -> float:
        return float(column(table, "from t_q on", strength=strength)[0])

    def over(strength: float) -> float:
        return float(column(table, "over", strength=strength)[0])

    rows = (
        at_most("share that predicts the trigger, alpha' = 1 (weaker than assumed)", 0.5, shares[0]),
        at_least("share that predicts the trigger, alpha' = 6.5 (after the theorem's two steps)", 0.5, shares[1]),
        at_least("share that predicts the trigger, alpha' = 100 (saturated)", 0.9, shares[2]),
        at_most("share that predicts the output, largest over alpha'", 0.15, float(column(table, "right").max())),
        at_least("attention on tokens from t_q on, alpha' = 100", 0.9, on_seen(100.0)),
        known_slip(at_least("attention on tokens from t_q on, alpha' = 6.5", 0.9, on_seen(6.5)), "setting"),
        at_least("effective share of the tokens from t_q on, alpha' = 6.5", 0.5, over(6.5)),
        known_slip(at_least("effective share of the tokens from t_q on, alpha' = 100", 0.5, over(100.0))),
    )
    return Result(rows, {"strengths": table})


def two_memories(e: Embeddings, alpha: float, strength: float) -> Circuit:
    """Ideal W_O2 and W_K2, in which a stored pair has these scores, and W_K1 = 0."""
    W_O2 = alpha * e.w_U.mT @ e.w_E @ e.W_V2.mT
    W_K2 = strength * (e.w_E @ e.Phi_1.mT).mT @ e.w_E
    return Circuit(W_O2, W_K2, torch.zeros_like(W_O2))
