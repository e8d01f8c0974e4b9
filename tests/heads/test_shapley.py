from itertools import permutations

import numpy as np
import pytest
import torch

from induction_memory.heads.shapley import (
    all_coalitions,
    entropy_number,
    interactions,
    participation,
    shapley,
    solve,
)


def table(n, worth):
    """A game given as a function of the set of those present, as values of all coalitions."""
    return torch.tensor([[float(worth({i for i in range(n) if row[i]}))] for row in all_coalitions(n)]).double()


def by_orders(n, worth):
    """The definition: mean contribution over all orders of arrival."""
    values = np.zeros(n)
    orders = list(permutations(range(n)))
    for order in orders:
        present = set()
        for player in order:
            before = worth(present)
            present = present | {player}
            values[player] += worth(present) - before
    return values / len(orders)


def random_game(n, seed):
    values = np.random.default_rng(seed).normal(size=2**n)
    return lambda present: values[sum(2**i for i in present)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_shapley_values_are_mean_contributions_over_all_orders(n):
    worth = random_game(n, n)
    np.testing.assert_allclose(shapley(table(n, worth))[:, 0].numpy(), by_orders(n, worth), atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_shapley_values_sum_to_the_total_effect(n):
    values = torch.randn(2**n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    torch.testing.assert_close(shapley(values).sum(0), values[-1] - values[0], atol=1e-12, rtol=0)


def test_either_is_enough_both_are_needed_and_they_add_up():
    either = interactions(table(2, lambda s: len(s) > 0))
    both = interactions(table(2, lambda s: len(s) == 2))
    add_up = interactions(table(2, lambda s: 0.7 * (0 in s) + 0.3 * (1 in s)))
    for (interaction, together), expected in zip((either, both, add_up), (-1, 1, 0), strict=True):
        assert interaction[0, 1, 0].item() == pytest.approx(expected)
        assert together[0, 1, 0].item() == pytest.approx(1)


def test_a_pair_of_which_either_is_enough_is_told_in_any_company():
    interaction, together = interactions(table(4, lambda s: {0, 3} <= s and bool(s & {1, 2})))
    assert interaction[1, 2, 0] / together[1, 2, 0] == pytest.approx(-1)
    assert interaction[0, 3, 0] / together[0, 3, 0] == pytest.approx(1)


def test_interactions_are_those_of_the_definition():
    worth, n = random_game(4, 0), 4
    got = interactions(table(n, worth))[0][..., 0]
    for i in range(n):
        for j in range(i):
            merged = [k for k in range(n) if k not in (i, j)]
            orders = list(permutations([*merged, "pair"]))
            total = 0.0
            for order in orders:
                before = set(order[: order.index("pair")])
                total += worth(before | {i, j}) - worth(before | {i}) - worth(before | {j}) + worth(before)
            assert got[i, j].item() == pytest.approx(total / len(orders))


def test_a_large_game_is_sampled_with_errors_that_cover_and_a_sum_that_is_exact():
    n = 12
    weight = np.linspace(0, 1, n)

    def evaluate(coalitions):
        x = (coalitions.double() @ torch.tensor(weight))[:, None]
        return x + 0.1 * x.square()

    solved = solve(n, evaluate, np.random.default_rng(0), orders=64)
    assert solved.drawn is not None
    assert solved.interaction is None
    assert solved.values.sum().item() == pytest.approx(solved.total.item(), abs=1e-9)
    exact = weight + 0.1 * weight * weight.sum()  # of x^2: w_i^2 + w_i (sum of the others) = w_i * sum
    error = solved.drawn[..., 0].std(0) / len(solved.drawn) ** 0.5
    assert (np.abs(solved.values[:, 0].numpy() - exact) <= 4 * error.numpy() + 1e-9).all()


def test_single_and_joint_cuts_are_the_same_exact_and_sampled(monkeypatch):
    values = table(4, random_game(4, 2))

    def evaluate(coalitions):
        return values[(coalitions * 2 ** torch.arange(4)).sum(1)]

    exact = solve(4, evaluate)
    monkeypatch.setattr("induction_memory.heads.shapley.EXACT", 3)
    sampled = solve(4, evaluate, np.random.default_rng(0), orders=400)
    for name in ("single", "joint", "alone", "total"):
        torch.testing.assert_close(getattr(sampled, name), getattr(exact, name))
    torch.testing.assert_close(sampled.values, exact.values, atol=0.3, rtol=0)


def test_effective_numbers_count_equal_heads_and_leave_out_those_that_work_against():
    for number in (participation, entropy_number):
        assert number(np.array([1.0, 1.0, 1.0, 0.0])) == pytest.approx(3)
        assert number(np.array([5.0, 0.0, -1.0])) == pytest.approx(1)
        assert np.isnan(number(np.array([-1.0, 0.0])))
    assert participation(np.array([0.7, 0.3])) == pytest.approx(1 / (0.49 + 0.09))
