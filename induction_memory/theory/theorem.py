r"""Theorem 3, step by step: what each gradient step writes, against the constants of Appendix B.3."""

from collections.abc import Callable
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.memory.association import causal, matching
from induction_memory.memory.readings import recall
from induction_memory.theory import constants
from induction_memory.theory.checks import Check, Result, at_least, at_most, sampled, within
from induction_memory.theory.circuit import (
    Circuit,
    Embeddings,
    gaussian,
    gradient,
    logits,
    orthonormal,
    streamed_gradients,
    zeros,
)
from induction_memory.theory.gradient_steps import accuracy, contrast, mean_and_error, output_step
from induction_memory.theory.sequences import TriggerSequences, enumerate_all

N, T = 64, 32
SMALL = 1e-3  # memories this weak leave the predictions at 1/N, as the paper assumes


def theorem_data() -> Result:
    r"""The theorem's sequences are those of the bigram task with $K = 1$ and uniform distributions in which $z_T$ is
    the trigger's second occurrence. All of them are enumerated from the task's definition. $t_q$ is exactly
    uniform on $\{1, \dots, T-1\}$ (so $t_o$ is not concentrated around $T/2$, and $\gamma_T \approx \log T / T$).
    Given $y = k$ the trigger is *not* uniform: $P(q = k \mid y = k) = 1/(T-1)$. The two agree only when $T = N +
    1$; elsewhere the paper's $P(q = j \mid y = k) = 1/N$ is off by a factor $N/(T-1)$ in one class out of $N$."""
    n, t = 4, 6
    data = enumerate_all(n, t)
    law = torch.bincount(data.first, data.weights, t)[1:]
    same = data.weights[data.labels == data.triggers].sum().item()
    free = _free_tokens_are_uniform(data, n)
    rows = (
        at_most(
            "t_q is uniform on 1..T-1: largest |P(t_q = t) - 1/(T-1)|", 1e-12, (law - 1 / (t - 1)).abs().max().item()
        ),
        within("P(q = k | y = k), as printed 1/N", 1 / n, same, 1e-6, slip=True),
        within("P(q = k | y = k) = 1/(T-1)", 1 / (t - 1), same, 1e-9),
        at_most("other tokens are uniform without q, for any y: largest deviation", 1e-12, free),
    )
    table = pd.DataFrame({"t_q": range(1, t), "probability": law.tolist()})
    return Result(rows, {"positions": table})


def theorem_step_1(
    closed_form: Callable[..., Float[Tensor, "d_model d_model"]] = output_step,
    exact: Callable[[int, int], tuple[float, float]] = constants.output_constants,
) -> Result:
    r"""The first step writes the output memory, and a spurious copy of it through $\Phi_1$:

    $$
    W_O^2 = \frac{\eta}{NT} \sum_k w_U(k) (W_V^2 (w_E(k) - \bar w_E))^\top + \frac{\eta \tau}{NT} \sum_k w_U(k)
    (W_V^2 \Phi_1 (w_E(k) - \bar w_E))^\top
    $$

    The form is exact, with $c_0$ and $c_1$ of `theory/constants.py` in place of $1$ and $\tau$: the other tokens of the
    sequence are not quite independent of $y$. It is checked first on an enumerated distribution with random embeddings,
    where the sums are exact, then on streamed samples with orthonormal embeddings."""
    data, e = enumerate_all(4, 5), gaussian(4, 5, 24, torch.Generator().manual_seed(0))
    by_autograd = -gradient(e, zeros(24), "W_O2", data, partial(logits, positions="everywhere", both_streams=True))
    printed = closed_form(e, 1.0, *exact(4, 5))
    rows = [
        _same_matrix(
            "closed form of W_O2 against autograd, N = 4, T = 5 enumerated: relative error", printed, by_autograd
        )
    ]

    e, generator = orthonormal(N, T), torch.Generator().manual_seed(1)
    steps = _streamed(e, zeros(e.shape[-1]), "W_O2", generator, partial(logits, both_streams=True)) * N * T
    read = e.w_U @ steps @ e.W_V2
    direct = mean_and_error(contrast(read @ e.w_E.mT))
    spurious = mean_and_error(contrast(read @ e.Phi_1 @ e.w_E.mT))
    c_0, c_1 = exact(N, T)
    W_O2 = steps.mean(0)
    rows += [
        within("diagonal of W_O2 in eta/(NT): 1 as printed", 1.0, direct[0], 0.05),
        sampled("diagonal of W_O2 in eta/(NT): exact c_0", c_0, *direct),
        within("spurious diagonal through Phi_1 in eta/(NT): tau as printed", constants.tau(T), spurious[0], 0.05),
        sampled("spurious diagonal through Phi_1 in eta/(NT): exact c_1", c_1, *spurious),
        at_least("recall of W_O2 after its step", 1.0, recall(matching(W_O2, e.w_E @ e.W_V2.mT, e.w_U)).item()),
        at_most(
            "accuracy after the first step stays near chance",
            0.15,
            accuracy(e, Circuit(W_O2, *(2 * (torch.zeros_like(W_O2),))), generator),
        ),
    ]
    return Result(tuple(rows), {"scores": _matrix_table(read.mean(0) @ e.w_E.mT)})


def theorem_step_2(
    signal: Callable[[int], float] = constants.gamma,
    exact: Callable[[int, int], float] = constants.match_constant,
    cases: Callable[[int, int], dict[str, float]] = constants.attended_content,
) -> Result:
    r"""The second step writes the memory of the induction head, each token with its remapped self:

    $$(\Phi_1 w_E(i))^\top W_K^2 w_E(j) \approx \frac{\alpha \eta}{TN} \{\gamma_T \, 1\{i = j\} + O(T/N)\}$$

    The paper's last display has $\Omega(1/T)$ in the place of $\gamma_T$. The four cases of $a_{k,j,i}$ are exact on an
    enumerated distribution. The total signal is the exact $g(N, T)$ of `theory/constants.py`, of which $\gamma_T$ is
    the leading term. The bound $O(T/N)$ on the noise is far from tight: the noise is exactly $-1/(N-1)$ of the signal,
    because the unconditional half of the gradient sums to zero, and $W_K^2$ is recalled even for $N < T$."""
    data = enumerate_all(4, 6)
    measured_cases = _measured_cases(data, 4, 6)
    worst = max(abs(measured_cases[name] - value) for name, value in cases(4, 6).items())
    rows = [at_most("a_{k,j,i} in the paper's four cases, N = 4, T = 6 enumerated: largest error", 1e-9, worst)]

    e, generator = orthonormal(N, T), torch.Generator().manual_seed(2)
    alpha = SMALL * constants.output_constants(N, T)[0]
    W_O2 = output_step(e, SMALL * N * T, *constants.output_constants(N, T))
    start = Circuit(W_O2, *(2 * (torch.zeros_like(W_O2),)))
    steps = _streamed(e, start, "W_K2", generator, logits) * N * T / alpha
    tables = (e.w_E @ e.Phi_1.mT) @ steps @ e.w_E.mT
    measured = mean_and_error(contrast(tables))
    diagonal = tables.diagonal(dim1=-2, dim2=-1)
    off = (tables.sum((-2, -1)) - diagonal.sum(-1)) / (N * (N - 1))
    noise = (off.mean() / diagonal.mean()).item()
    recalled = recall(matching(steps.mean(0), e.w_E, e.w_E @ e.Phi_1.mT)).item()
    rows += [
        within("signal of W_K2 in alpha eta/(NT): gamma_T as printed", signal(T), measured[0], 0.1),
        sampled("signal of W_K2 in alpha eta/(NT): exact g(N, T)", exact(N, T), *measured),
        within("off-diagonal over diagonal of W_K2: exactly -1/(N-1)", -1 / (N - 1), noise, 1e-5),
        at_least("gamma_T is positive: T gamma_T", 1.0, T * signal(T)),
        at_least("recall of W_K2 after its step", 1.0, recalled),
        at_least("g(N, T) stays positive when N < T (N = 8, T = 32)", 0.0, exact(8, 32)),
    ]
    return Result(tuple(rows), {"scores": _matrix_table(tables.mean(0))})


def theorem_step_3(
    signal: Callable[[int], Float[Tensor, "key query"]] = constants.position_signal,
    exact: Callable[[int, int], Float[Tensor, "key query"]] = constants.position_constants,
) -> Result:
    r"""The third step writes the previous-token memory, weaker at later positions:

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
    by_autograd = -gradient(e, _two_memories(e, 4, 6), "W_K1", data) / SMALL**2
    found = e.p @ by_autograd @ e.p.mT
    rows = [
        _same_matrix("exact W_K1 against autograd, N = 4, T = 6 enumerated: relative error", exact(4, 6), found, 5e-3)
    ]

    e, generator = orthonormal(N, T), torch.Generator().manual_seed(3)
    steps = _streamed(e, _two_memories(e, N, T), "W_K1", generator, logits) / SMALL**2
    tables = e.p @ steps @ e.p.mT * torch.arange(1, T + 1) * T**2  # in eta alpha alpha' / (T^2 t)
    unit = torch.arange(1, T + 1) * T**2
    printed, truth = signal(T) * unit, exact(N, T) * unit
    previous, own = tables.diagonal(1, -2, -1), tables.diagonal(0, -2, -1)[:, 1:]
    error = previous.std(0) / len(previous) ** 0.5
    z_scores = ((previous.mean(0) - truth.diagonal(1)) / error).square().mean().item()
    tie = mean_and_error(own[:, -2] / previous[:, -2])
    deviation = (previous.mean(0) / printed.diagonal(1) - 1).abs().max().item()
    recalled = recall(matching(exact(N, T), *_basis(T), torch.arange(T - 1), allowed=causal(T)[1:].mT)).item()
    rows += [
        at_most(
            "previous-position scores over t against the printed formula: largest relative deviation", 0.1, deviation
        ),
        at_most("previous-position scores over t against the exact ones: mean squared z-score", 3.0, z_scores),
        within("own over previous score at t = T-1, as printed", _tie(printed), tie[0], 0.5, slip=True),
        sampled("own over previous score at t = T-1, exact", _tie(truth), *tie),
        at_least("recall of the exact W_K1 (causal)", 1.0, recalled),
    ]
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
    return Result(tuple(rows), {"scores": _matrix_table(tables.mean(0).triu()), "constants": table})


def _streamed(e, c, matrix, generator, forward, chunks: int = 24, chunk: int = 4096) -> Float[Tensor, "chunk d d"]:
    """Minus the gradient, one estimate per chunk of sequences."""
    return -torch.stack(list(streamed_gradients(e, c, matrix, generator, chunks, chunk, forward)))


def _two_memories(e: Embeddings, n: int, t: int) -> Circuit:
    """W_O2 and W_K2 with unit contrasts times SMALL, W_K1 zero."""
    W_O2 = SMALL * e.w_U.mT @ e.w_E @ e.W_V2.mT
    W_K2 = SMALL * (e.w_E @ e.Phi_1.mT).mT @ e.w_E
    return Circuit(W_O2, W_K2, torch.zeros_like(W_O2))


def _tie(table: Float[Tensor, "key query"]) -> float:
    """The score of the own position divided by that of the previous one, at t = T - 1."""
    return (table[-2, -2] / table[-3, -2]).item()


def _basis(t: int) -> tuple[Float[Tensor, "query d"], Float[Tensor, "key d"]]:
    eye = torch.eye(t, dtype=torch.float64)
    return eye[1:], eye


def _same_matrix(
    statement: str, closed: Float[Tensor, "a b"], other: Float[Tensor, "a b"], tolerance: float = 1e-5
) -> Check:
    """Relative Frobenius distance of a closed form from what autograd gives."""
    return at_most(statement, tolerance, ((closed - other).norm() / other.norm()).item())


def _matrix_table(table: Float[Tensor, "i j"]) -> pd.DataFrame:
    return pd.DataFrame(table.numpy())


def _free_tokens_are_uniform(data: TriggerSequences, n: int) -> float:
    """Largest deviation from 1/(N-1) of a token away from t_q, t_o and T, given q, y and t_q."""
    worst = 0.0
    for q, y, t_q in {
        (a, b, c) for a, b, c in zip(*(x.tolist() for x in (data.triggers, data.labels, data.first)), strict=True)
    }:
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
    j = 0
    differ = (data.triggers == j) & (data.labels != j)
    same = (data.triggers == j) & (data.labels == j)
    apart = (data.weights[differ].unsqueeze(-1) * content[differ]).sum(0) / data.weights[differ].sum()
    together = (data.weights[same].unsqueeze(-1) * content[same]).sum(0) / data.weights[same].sum()
    return {
        "j != k, i = j": apart[0].item(),
        "i = j = k": together[0].item(),
        "i != j = k": together[1].item(),
        "i != j, j != k": apart[1].item(),
    }
