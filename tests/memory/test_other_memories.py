"""The factorised and the non-linear memory."""

import itertools

import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.memory import matching, nonlinear, random_embeddings, recall


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_factorised_memory_is_the_outer_product_memory_of_both_factors():
    d, low, n = 6, 3, 2
    initial = nonlinear.random_factors(d, low, torch.Generator().manual_seed(0))
    x, y = draw(n, d, seed=1), draw(n, d, seed=2)
    U, V = nonlinear.factorised(initial, x, y)
    slow_U, slow_V = initial.U.clone(), initial.V.clone()
    for i in range(n):
        slow_U += torch.outer(y[i], initial.V @ x[i])
        slow_V += torch.outer(initial.U.T @ y[i], x[i])
    torch.testing.assert_close(U, slow_U)
    torch.testing.assert_close(V, slow_V)
    torch.testing.assert_close(nonlinear.product(nonlinear.Factors(U, V)), d / (2 * low) * slow_U @ slow_V)


def test_a_low_rank_memory_of_random_embeddings_recalls_a_few_pairs():
    generator = torch.Generator().manual_seed(0)
    x = random_embeddings.gaussian_embeddings(10, 256, generator)
    y = random_embeddings.gaussian_embeddings(10, 256, generator)
    factors = nonlinear.factorised(nonlinear.random_factors(256, 64, generator), x, y)
    W = nonlinear.product(factors)
    assert torch.linalg.matrix_rank(W) == 64
    assert recall(matching(W, x, y)) == 1


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
