"""The memories: recall and its finer readings, both divergences, the factorised and the non-linear memory."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from induction_memory.errors import InputError
from induction_memory.memory import associative, divergence, factorised, nonlinear, random_embeddings


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_scores(W, inputs, outputs):
    table = [[float(v @ W @ u) for u in inputs] for v in outputs]
    return torch.tensor(table, dtype=W.dtype)


def slow_rank(W, inputs, outputs, targets, allowed):
    s = slow_scores(W, inputs, outputs)
    ranks = []
    for i, target in enumerate(targets.tolist()):
        better = [j for j in range(len(outputs)) if j != target and allowed[j, i] and s[j, i] >= s[target, i]]
        ranks.append(1 + len(better))
    return torch.tensor(ranks)


def test_outer_products_of_orthonormal_vectors_are_recalled_and_zeros_are_not():
    u, v = torch.eye(4), torch.eye(4).flip(0)
    pairs = torch.arange(4)
    stored = v.T @ u  # sum of v_i u_i^T
    assert associative.recall(stored, u, v, pairs) == 1
    assert associative.recall(torch.zeros(4, 4), u, v, pairs) == 0
    assert torch.equal(associative.store(u, v, pairs), stored)


def test_one_wrong_pair_out_of_four_recalls_three_quarters():
    u = v = torch.eye(4)
    targets = torch.tensor([0, 1, 2, 2])
    assert associative.recall(torch.eye(4), u, v, targets) == 0.75
    assert torch.equal(associative.rank(torch.eye(4), u, v, targets), torch.tensor([1, 1, 1, 4]))


def test_margin_rank_and_soft_recall_of_a_matrix_worked_out_by_hand():
    u = v = torch.eye(3, dtype=torch.float64)
    W = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 0.0], [1.0, 0.0, 3.0]], dtype=torch.float64)  # columns: inputs
    targets = torch.arange(3)
    assert associative.margin(W, u, v, targets).tolist() == [1.0, -0.5, 3.0]
    assert associative.rank(W, u, v, targets).tolist() == [1, 2, 1]
    e = math.exp
    by_hand = (e(2) / (e(2) + 1 + e(1)) + e(0.5) / (e(1) + e(0.5) + 1) + e(3) / (2 + e(3))) / 3
    assert associative.soft_recall(W, u, v, targets).item() == pytest.approx(by_hand)
    signal, interference = 5.5 / 3, math.sqrt((1 + 1) / 6)
    assert associative.signal_to_interference(W, u, v, targets).item() == pytest.approx(signal / interference)


def test_weights_of_stored_pairs_are_read_back_as_scores():
    u, v = torch.eye(3), torch.eye(3)
    W = associative.store(u, v, torch.tensor([2, 0, 1]), torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(
        associative.at_target(associative.scores(W, u, v), torch.tensor([2, 0, 1])), torch.tensor([1.0, 2, 3])
    )


@pytest.mark.parametrize("seed", range(5))
def test_fast_readings_equal_the_slow_loops(seed):
    W, u, v = draw(5, 4, seed=seed), draw(6, 4, seed=seed + 10), draw(7, 5, seed=seed + 20)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 7, (6,), generator=generator)
    allowed = torch.rand(7, 6, generator=generator) < 0.5
    allowed[targets, torch.arange(6)] = True
    everything = torch.ones(7, 6, dtype=torch.bool)
    torch.testing.assert_close(associative.scores(W, u, v), slow_scores(W, u, v))
    ranks = slow_rank(W, u, v, targets, everything)
    assert torch.equal(associative.rank(W, u, v, targets), ranks)
    assert associative.recall(W, u, v, targets).item() == pytest.approx((ranks == 1).float().mean().item())
    masked = slow_rank(W, u, v, targets, allowed)
    assert torch.equal(associative.rank(W, u, v, targets, allowed), masked)
    recalled = associative.masked_recall(W, u, v, targets, allowed).item()
    assert recalled == pytest.approx((masked == 1).float().mean().item())
    assert torch.equal(associative.margin(W, u, v, targets, allowed) > 0, masked == 1)


def test_a_stack_of_matrices_gives_the_same_as_one_after_the_other():
    W, u, v, targets = draw(3, 2, 5, 4), draw(6, 4, seed=1), draw(6, 5, seed=2), torch.arange(6)
    table = draw(6, 6, seed=3).softmax(-1)
    readings = {
        "recall": lambda W, u, v: associative.recall(W, u, v, targets),
        "margin": lambda W, u, v: associative.margin(W, u, v, targets),
        "rank": lambda W, u, v: associative.rank(W, u, v, targets),
        "soft": lambda W, u, v: associative.soft_recall(W, u, v, targets, associative.causal(6)),
        "signal": lambda W, u, v: associative.signal_to_interference(W, u, v, targets),
        "masked": lambda W, u, v: associative.masked_recall(W, u, v, targets, associative.causal(6)),
        "restricted": lambda W, u, v: associative.restricted_recall(W, u, v, targets, torch.tensor([1, 2])),
        "to": lambda W, u, v: divergence.kl_to_model(W, u, v, table),
        "from": lambda W, u, v: divergence.kl_from_model(W, u, v, table),
        "support": lambda W, u, v: divergence.kl_from_model_on_support(W, u, v, table),
    }
    for name, reading in readings.items():
        stacked = reading(W, u, v)
        for step, head in itertools.product(range(3), range(2)):
            torch.testing.assert_close(stacked[step, head], reading(W[step, head], u, v), msg=name)


def test_embeddings_may_change_with_the_step():
    W, u, v, targets = draw(3, 5, 4), draw(3, 6, 4, seed=1), draw(3, 6, 5, seed=2), torch.arange(6)
    stacked = associative.margin(W, u, v, targets)
    for step in range(3):
        torch.testing.assert_close(stacked[step], associative.margin(W[step], u[step], v[step], targets))


def test_the_causal_mask_hides_later_keys():
    keys = queries = torch.eye(3)
    scores_of_keys = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [5.0, 5.0, 0.0]]  # a row a key, a column a query
    W, previous = torch.tensor(scores_of_keys), torch.tensor([0, 1])
    assert associative.recall(W, queries[1:], keys, previous) == 0.5  # query 1 prefers key 2, its future
    allowed = associative.causal(3)[:, 1:]
    assert allowed.tolist() == [[True, True], [True, True], [False, True]]
    assert associative.masked_recall(W, queries[1:], keys, previous, allowed) == 1


def test_restricting_inputs_and_candidates():
    u = v = torch.eye(4)
    W = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0])) + 2 * torch.eye(4).roll(2, 0)  # a rival two places on
    targets = torch.arange(4)
    assert associative.recall(W, u, v, targets) == 0
    few = torch.tensor([0, 1])
    assert associative.restricted_recall(W, u, v, targets, of=few) == 0
    assert associative.restricted_recall(W, u, v, targets, of=few, among=few) == 1


def test_a_target_that_is_not_allowed_is_refused():
    allowed = torch.ones(3, 3, dtype=torch.bool)
    allowed[1, 1] = False
    with pytest.raises(InputError, match="allowed: expected every input's target"):
        associative.rank(torch.eye(3), torch.eye(3), torch.eye(3), torch.arange(3), allowed)


def slow_kl(p, q):
    return sum(a * (math.log(a) - math.log(b)) if a > 0 else 0.0 for a, b in zip(p, q, strict=True))


@given(st.integers(0, 1000))
def test_both_divergences_equal_the_slow_sums(seed):
    W, u, v = draw(3, 4, seed=seed), draw(5, 4, seed=seed + 1), draw(6, 3, seed=seed + 2)
    table = draw(5, 6, seed=seed + 3).softmax(-1)
    q = slow_scores(W, u, v).T.softmax(-1)
    to = sum(slow_kl(p.tolist(), r.tolist()) for p, r in zip(table, q, strict=True)) / 5
    back = sum(slow_kl(r.tolist(), p.tolist()) for p, r in zip(table, q, strict=True)) / 5
    assert divergence.kl_to_model(W, u, v, table).item() == pytest.approx(to)
    assert divergence.kl_from_model(W, u, v, table).item() == pytest.approx(back)
    assert divergence.kl_from_model_on_support(W, u, v, table).item() == pytest.approx(back)


def test_divergences_vanish_when_the_memory_holds_the_log_table():
    table = draw(4, 4).softmax(-1)
    W = table.log().T
    eye = torch.eye(4, dtype=torch.float64)
    for kl in (divergence.kl_to_model, divergence.kl_from_model, divergence.kl_from_model_on_support):
        assert kl(W, eye, eye, table).item() == pytest.approx(0, abs=1e-12)


def test_a_zero_in_the_table_makes_the_paper_s_direction_infinite_and_the_others_finite():
    table = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)
    eye, W = torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)  # uniform predictions
    assert divergence.kl_from_model(W, eye, eye, table).item() == math.inf
    assert math.isfinite(divergence.kl_from_model(W, eye, eye, table, smoothing=0.01).item())
    to = (math.log(3) - math.log(2) + math.log(3) + math.log(3) - 1.5 * math.log(2)) / 3
    assert divergence.kl_to_model(W, eye, eye, table).item() == pytest.approx(to)
    on_support = (0 + 0 + (math.log(1 / 3) * 3 - 2 * math.log(0.25) - math.log(0.5)) / 3) / 3
    assert divergence.kl_from_model_on_support(W, eye, eye, table).item() == pytest.approx(on_support)
    assert divergence.mass_off_support(W, eye, eye, table).item() == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)


def test_a_table_that_is_no_probability_is_refused():
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(InputError, match="conditional: expected rows of probabilities"):
        divergence.kl_to_model(eye, eye, eye, torch.ones(2, 2, dtype=torch.float64))


def test_the_factorised_memory_is_the_outer_product_memory_of_both_factors():
    d, low, n = 6, 3, 2
    initial = factorised.random_factors(d, low, torch.Generator().manual_seed(0))
    x, y = draw(n, d, seed=1), draw(n, d, seed=2)
    U, V = factorised.factorised(initial, x, y)
    slow_U, slow_V = initial.U.clone(), initial.V.clone()
    for i in range(n):
        slow_U += torch.outer(y[i], initial.V @ x[i])
        slow_V += torch.outer(initial.U.T @ y[i], x[i])
    torch.testing.assert_close(U, slow_U)
    torch.testing.assert_close(V, slow_V)
    torch.testing.assert_close(factorised.product(factorised.Factors(U, V)), d / (2 * low) * slow_U @ slow_V)


def test_a_low_rank_memory_of_random_embeddings_recalls_a_few_pairs():
    generator = torch.Generator().manual_seed(0)
    x = random_embeddings.gaussian_embeddings(10, 256, generator)
    y = random_embeddings.gaussian_embeddings(10, 256, generator)
    factors = factorised.factorised(factorised.random_factors(256, 64, generator), x, y)
    W = factorised.product(factors)
    assert torch.linalg.matrix_rank(W) == 64
    assert associative.recall(W, x, y, torch.arange(10)) == 1


def test_truncation_keeps_the_largest_singular_values():
    W = torch.diag(torch.tensor([3.0, 2.0, 1.0])).repeat(2, 1, 1)
    assert torch.allclose(factorised.truncate(W, 2), torch.diag(torch.tensor([3.0, 2.0, 0.0])), atol=1e-6)


def test_the_mlp_memory_fires_only_the_neuron_above_the_bias():
    u = v = torch.eye(3, dtype=torch.float64)
    targets = torch.tensor([1, 2, 0])
    x = torch.tensor([[1.0, 0.4, 0.0]], dtype=torch.float64)
    assert torch.allclose(nonlinear.mlp_memory(x, u, v, targets, 0.5), 0.5 * v[1])
    assert nonlinear.mlp_recall(u, v, targets, 0.5) == 1
    assert nonlinear.mlp_recall(u, v, targets, 1.5) == 0  # nothing fires


def test_pairs_of_elements_map_to_their_own_output_only_without_linearity():
    u = torch.eye(4, dtype=torch.float64)
    sets = torch.tensor(list(itertools.combinations(range(4), 2)))
    sums = nonlinear.set_embeddings(u, sets)
    assert torch.allclose(sums @ sums.T, torch.eye(6, dtype=torch.float64), atol=0.51)  # overlaps of 1/2
    v = torch.eye(6, dtype=torch.float64)
    assert nonlinear.mlp_recall(sums, v, torch.arange(6), 0.75) == 1
    with pytest.raises(InputError, match="sets: expected different elements"):
        nonlinear.set_embeddings(u, torch.tensor([[1, 1]]))


def test_orthogonality_of_vectors_worked_out_by_hand():
    stats = random_embeddings.orthogonality(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.5, 0.0]]))
    assert stats.mean_norm2.item() == pytest.approx((1 + 4 + 0.25) / 3)
    assert stats.rms_overlap.item() == pytest.approx(math.sqrt(2 * 0.25 / 6))
    assert stats.max_overlap.item() == pytest.approx(0.5)
    assert random_embeddings.cross_overlap(torch.eye(2), torch.eye(2)).item() == pytest.approx(math.sqrt(0.5))


def test_random_embeddings_are_nearly_orthonormal_and_stacks_agree_with_single_sets():
    generator = torch.Generator().manual_seed(0)
    u = torch.stack([random_embeddings.gaussian_embeddings(50, 400, generator) for _ in range(3)])
    stats = random_embeddings.orthogonality(u)
    assert stats.mean_norm2.shape == (3,)
    assert torch.allclose(stats.mean_norm2, torch.ones(3, dtype=torch.float64), atol=0.05)
    assert torch.allclose(stats.rms_overlap * 20, torch.ones(3, dtype=torch.float64), atol=0.1)
    assert stats.max_overlap[1] == random_embeddings.orthogonality(u[1]).max_overlap


def test_a_matrix_that_diverged_recalls_nothing():
    u, pairs = torch.eye(4), torch.arange(4)
    diverged = torch.full((4, 4), torch.nan)
    assert associative.recall(diverged, u, u, pairs) == 0
    assert associative.rank(diverged, u, u, pairs).tolist() == [4, 4, 4, 4]
    alone = associative.causal(4)  # the first position has no rival
    assert associative.masked_recall(diverged, u, u, pairs, alone) == 0.25
