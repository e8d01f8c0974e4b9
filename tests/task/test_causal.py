"""The causal graph against counting by hand."""

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.task.causal import CausalGraph


def test_bayes_counts_the_children_of_the_querys_symbol():
    task = CausalGraph(symbols=3, length=9, alpha=0.4, graph_seed=2)
    tokens = task.sample(6, np.random.default_rng(0)).tokens
    predicted = {name: predictor(tokens) for name, predictor in task.predictors().items()}
    for row, z in enumerate(tokens.tolist()):
        for t in range(9):
            for name, parents in (("bayes", task.parents), ("chain", np.arange(9) - 1)):
                counts = np.zeros(3)
                for i in range(t + 1):
                    if parents[i] >= 0 and z[parents[i]] == z[t]:
                        counts[z[i]] += 1
                expected = (counts + 0.4) / (counts.sum() + 1.2)
                np.testing.assert_allclose(predicted[name][row, t].numpy(), expected, atol=1e-12)
    assert bool((predicted["uniform"] == 1 / 3).all())


def test_bayes_is_the_posterior_mean():
    """Two symbols: the probability that a child of 1 is 1 is integrated on a grid."""
    task = CausalGraph(symbols=2, length=6, alpha=0.7, graph=(-1, 0, 0, 1, 2, -1))
    z = [1, 1, 0, 1, 0, 1]
    grid = (np.arange(4000) + 0.5) / 4000
    weight = (grid * (1 - grid)) ** (task.alpha - 1)
    for i, parent in enumerate(task.parents):
        if parent >= 0 and z[parent] == 1:
            weight = weight * (grid if z[i] else 1 - grid)
    expected = (weight * grid).sum() / weight.sum()
    assert task.predictors()["bayes"](torch.tensor([z]))[0, -1, 1].item() == pytest.approx(expected, abs=1e-4)


def test_children_and_targets_are_drawn_from_the_parents_row_and_roots_uniformly():
    task = CausalGraph(symbols=2, length=5, alpha=0.5, graph=(-1, 0, 0, 1, -1), asked="all")
    batch = task.sample(20_000, np.random.default_rng(0))
    rows, z = batch.latents["rows"], batch.tokens
    here = torch.arange(len(z))
    for i, parent in enumerate(task.parents):
        p = rows[here, z[:, parent], 1] if parent >= 0 else torch.full((len(z),), 0.5, dtype=torch.float64)
        assert (z[:, i] - p).mean().abs().item() < 0.015
        assert ((z[:, i] - p) * (p - 0.5)).mean().abs().item() < 0.005  # calibrated at both ends
    p = rows[here[:, None], z, 1]
    assert (batch.targets - p).mean().abs().item() < 0.01
    assert bool(batch.counted.all())


def test_only_the_last_position_is_asked_unless_all_are():
    batch = CausalGraph(length=5).sample(3, np.random.default_rng(0))
    assert batch.counted.tolist() == [[False] * 4 + [True]] * 3


def test_sources_are_parents_and_children_of_the_same_symbol():
    task = CausalGraph(symbols=2, length=5, graph=(-1, 0, 0, 1, -1))
    batch = task.sample(8, np.random.default_rng(0))
    sources = task.sources(batch)
    assert sources["parent"][0].int().tolist() == [
        [0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    for row, z in enumerate(batch.tokens.tolist()):
        expected = [task.parents[i] >= 0 and z[task.parents[i]] == z[4] for i in range(5)]
        assert sources["induction"][row, 4].tolist() == expected


def test_named_graphs():
    assert CausalGraph(length=7, graph="chain").parents.tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert CausalGraph(length=7, graph="binary").parents.tolist() == [-1, 0, 0, 1, 1, 2, -1]
    a, b = (CausalGraph(graph_seed=seed).parents for seed in (0, 1))
    assert not np.array_equal(a, b)
    assert list(CausalGraph(graph="chain").variants()) == ["other graph"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 3, "graph": (-1, 1, -1)}, "task.graph[1]: expected -1 to 0 (an earlier position, or -1 for none)"),
        ({"length": 3, "graph": (-1, 0)}, "task.graph: expected one parent per position (3), got 2"),
        ({"length": 3, "graph": (-1, 0, 1)}, "task.graph: expected no parent (-1) of the last position, got 1"),
        ({"graph": "tree"}, "task.graph: expected 'random', 'chain', 'binary' or a list, got 'tree'"),
        ({"asked": "some"}, "task.asked: expected 'last' or 'all', got 'some'"),
    ],
)
def test_bad_settings_are_refused(settings, message, unchecked):
    with pytest.raises(InputError) as error:
        CausalGraph(**settings)
    assert str(error.value).startswith(message)
