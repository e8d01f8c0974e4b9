"""The terms of Appendix B.3 against their definitions, summed over every sequence of a small task."""

import pytest
import torch

from induction_memory.paper.theory import theorem
from induction_memory.paper.theory.circuit import enumerate_all, orthonormal
from induction_memory.paper.theory.theorem import match_terms, position_terms, two_memories

N, T = 4, 6


@pytest.fixture(scope="module")
def data():
    return enumerate_all(N, T)


def cases(data):
    """Tokens, label, t_q and probability of every sequence, as plain Python."""
    return list(
        zip(data.tokens.tolist(), data.labels.tolist(), data.first.tolist(), data.weights.tolist(), strict=True)
    )


def mean(rows, value):
    total = sum(weight for *_, weight in rows)
    return sum(weight * value(z, y, first) for z, y, first, weight in rows) / total


def content(z, j, t):
    """Weight of Phi_1 w_E(j) in x_{t,1} - x_bar_1, positions counted from 1."""
    share = [z[:s].count(j) / s for s in range(1, T + 1)]
    return share[t - 1] - sum(share) / T


def positions_of(part, first):
    t_o = first + 1
    parts = {"o": {t_o}, "q": {t_o - 1, T} - {t_o}}
    return parts.get(part, set(range(1, T + 1)) - {t_o, t_o - 1, T})


@pytest.mark.parametrize("part", ["o", "q", "r"])
def test_the_parts_of_the_second_step_are_the_papers_expectations(part, data):
    j, rows = 1, cases(data)
    given_j = [row for row in rows if row[0][-1] == j]
    total = 0.0
    for k in range(N):

        def summed(z, y, first, k=k):
            return sum(content(z, j, t) for t in positions_of(part, first) if z[t - 1] == k)

        total += mean([row for row in given_j if row[1] == k], summed) - mean(given_j, summed)
    assert match_terms(N, T)[part] == pytest.approx(total / N, abs=1e-12)


@pytest.mark.parametrize("name", ["A", "B", "C", "D"])
def test_the_parts_of_the_third_step_are_the_papers_expectations(name, data):
    rows = cases(data)
    expected = torch.zeros(T, T, dtype=torch.float64)
    for k in range(N):
        chosen = [row for row in rows if row[1] == k] if name in "AC" else rows
        for t in range(1, T + 1):
            for s in range(1, t + 1):

                def value(z, y, first, k=k, t=t, s=s):
                    share = (z[t - 1] == k) if name in "AB" else z.count(k) / T
                    return share * (first <= t) * ((first == s) - 1 / t)

                expected[t - 1, s - 1] += mean(chosen, value) / N
    assert torch.allclose(position_terms(N, T)[name], expected, atol=1e-12)


def test_the_four_parts_add_up_to_the_exact_constants_away_from_the_end():
    terms = position_terms(64, 32)
    t = torch.arange(1, 33).unsqueeze(-1)
    whole = (terms["A"] - terms["B"] - terms["C"] + terms["D"]) / (32 * t)
    exact = theorem.position_constants(64, 32).mT
    assert torch.allclose(whole[: 32 - 1], exact[: 32 - 1], atol=1e-9)


def test_the_two_memories_store_their_pairs_with_the_given_scores():
    e = orthonormal(5, 4)
    c = two_memories(e, 3.0, 7.0)
    assert torch.allclose(e.w_U @ c.W_O2 @ e.W_V2 @ e.w_E.mT, 3 * torch.eye(5).double())
    assert torch.allclose(e.w_E @ e.Phi_1.mT @ c.W_K2 @ e.w_E.mT, 7 * torch.eye(5).double())
