"""Distances to predictors, fitted mixtures and named phases."""

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.task.predictors import (
    Phase,
    describe,
    distances,
    kl_to_predictor,
    mixture_weights,
    phases,
    predictions,
)


def test_kl_is_the_sum_over_outputs_averaged_over_positions():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, 5, generator=rng)
    p = torch.rand(2, 4, 5, generator=rng).double()
    p[0, 0, 0] = 0
    p = p / p.sum(-1, keepdim=True)
    where = torch.tensor([[True, False, True, True], [False, True, False, False]])
    found = kl_to_predictor(logits, p, where)
    for step in range(3):
        q = logits[step].double().softmax(-1)
        total = 0.0
        for b, t in where.nonzero().tolist():
            for j in range(5):
                if p[b, t, j] > 0:
                    total += float(p[b, t, j] * (p[b, t, j] / q[b, t, j]).log())
        assert found[step].item() == pytest.approx(total / 4)


def test_a_model_is_at_distance_zero_from_itself_and_a_one_hot_predictor_is_finite():
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)).double()
    where = torch.ones(2, 3, dtype=torch.bool)
    one_hot = torch.nn.functional.one_hot(torch.zeros(2, 3, dtype=torch.int64), 4).double()
    found = distances(logits, {"itself": logits.softmax(-1), "sure": one_hot}, where)
    assert found["itself"].item() == pytest.approx(0, abs=1e-12)
    assert found["sure"].item() == pytest.approx(-logits.log_softmax(-1)[..., 0].mean().item())
    with pytest.raises(InputError, match="where: expected at least one position"):
        kl_to_predictor(logits, one_hot, ~where)


def test_what_is_no_probability_is_refused():
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(InputError, match="predictor 'half': expected probabilities that sum to 1"):
        predictions({"half": lambda z: torch.full((1, 2, 3), 1 / 6)}, tokens, 3)
    with pytest.raises(
        InputError, match=r"predictor 'wide': expected probabilities of shape \(1, 2, 3\), got \(1, 2, 4\)"
    ):
        predictions({"wide": lambda z: torch.full((1, 2, 4), 1 / 4)}, tokens, 3)


def test_the_weights_of_a_mixture_are_recovered():
    rng = torch.Generator().manual_seed(2)
    a, b, c = (torch.randn(20, 5, 6, generator=rng).double().softmax(-1) for _ in range(3))
    model = (0.7 * a + 0.3 * b).log()
    where = torch.ones(20, 5, dtype=torch.bool)
    weights = mixture_weights(model, {"a": a, "b": b, "c": c}, where)
    assert weights["a"] == pytest.approx(0.7, abs=1e-3)
    assert weights["b"] == pytest.approx(0.3, abs=1e-3)
    assert sum(weights.values()) == pytest.approx(1)


def test_the_weights_are_where_the_divergence_is_least():
    rng = torch.Generator().manual_seed(3)
    a, b = (torch.randn(10, 4, 5, generator=rng).double().softmax(-1) for _ in range(2))
    logits = torch.randn(10, 4, 5, generator=rng).double()
    where = torch.ones(10, 4, dtype=torch.bool)
    q = logits.softmax(-1)
    grid = np.linspace(0, 1, 2001)
    costs = [-(q * (w * a + (1 - w) * b).log()).sum().item() for w in grid]
    assert mixture_weights(logits, {"a": a, "b": b}, where)["a"] == pytest.approx(grid[np.argmin(costs)], abs=2e-3)


STEPS = [0, 10, 20, 30, 40, 50]


def test_phases_follow_the_closest_predictor():
    curves = {"unigram": [0.1, 0.1, 0.5, 0.9, 1.0, 1.0], "bayes": [0.9, 0.8, 0.2, 0.1, 0.0, 0.0]}
    found = phases(STEPS, curves)
    assert found == [Phase("unigram", 0, 10), Phase("bayes", 20, 50)]
    assert describe(found) == (
        "closest to the unigram predictor until step 10, to the bayes predictor from step 20 to the end"
    )


def test_a_flicker_is_no_phase():
    curves = {"unigram": [0.5, 0.52, 0.5, 0.9, 0.5, 0.5], "bayes": [0.9, 0.50, 0.6, 0.1, 0.6, 0.6]}
    assert phases(STEPS, curves) == [Phase("unigram", 0, 50)]
    assert len(phases(STEPS, curves, margin=0, patience=1)) > 1
    assert describe(phases(STEPS, curves)) == "closest to the unigram predictor throughout"


def test_of_equals_the_simpler_counts_and_three_phases_are_told_in_order():
    same = [0.3] * 6
    assert phases(STEPS, {"simple": same, "clever": same}) == [Phase("simple", 0, 50)]
    curves = {"a": [0, 0, 1, 1, 1, 1], "b": [1, 1, 0, 0, 1, 1], "c": [2, 2, 2, 2, 0, 0]}
    assert describe(phases(STEPS, curves)) == (
        "closest to the a predictor until step 10, to the b predictor from step 20 to 30, "
        "to the c predictor from step 40 to the end"
    )


def test_curves_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"distances: expected one per step \(6\), got 2"):
        phases(STEPS, {"a": [1.0, 2.0]})
    with pytest.raises(InputError, match="distances: expected numbers, got nan"):
        phases([0], {"a": [float("nan")]})
