"""Markov chains against counting by hand, and against numerical integration over the chain."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.task.markov import MarkovChains, gram, memorised, stationary


def counted(sequence: list[int], m: int, symbols: int, alpha: float) -> np.ndarray:
    """The m-gram prediction after a sequence, by a loop over every earlier place."""
    context, counts = sequence[len(sequence) - (m - 1) :], np.zeros(symbols)
    for place in range(m - 1, len(sequence)):
        if sequence[place - (m - 1) : place] == context and len(context) == m - 1:
            counts[sequence[place]] += 1
    return (counts + alpha) / (counts.sum() + symbols * alpha)


@pytest.mark.parametrize(("order", "symbols", "alpha"), [(1, 3, 1.0), (2, 2, 0.5), (3, 2, 2.0)])
def test_every_gram_is_a_count(order, symbols, alpha):
    task = MarkovChains(symbols=symbols, order=order, length=14, alpha=alpha)
    tokens = task.sample(5, np.random.default_rng(0)).tokens
    predictors = task.predictors()
    assert list(predictors) == [f"{m}-gram" for m in range(1, order + 2)]
    for m, predictor in enumerate(predictors.values(), start=1):
        predicted = predictor(tokens)
        for row, sequence in enumerate(tokens.tolist()):
            for t in range(14):
                expected = counted(sequence[: t + 1], m, symbols, alpha)
                np.testing.assert_allclose(predicted[row, t].numpy(), expected, atol=1e-12)


def test_the_highest_gram_is_the_posterior_mean_of_the_chain():
    """Two symbols, order 1: the two rows are (1-a, a) and (1-b, b), and a and b are integrated on a grid."""
    alpha, sequence = 0.7, [0, 1, 1, 0, 1, 0, 0, 1]
    grid = (np.arange(4000) + 0.5) / 4000
    prior = (grid * (1 - grid)) ** (alpha - 1)
    after_one = [b for a, b in pairwise(sequence) if a == 1]
    weight = prior * np.prod([grid if b else 1 - grid for b in after_one], axis=0)
    expected = (weight * grid).sum() / weight.sum()
    predicted = gram(torch.tensor([sequence]), 2, 2, alpha)[0, -1, 1].item()
    assert predicted == pytest.approx(expected, abs=1e-4)


def test_the_pool_is_weighed_by_its_likelihood():
    task = MarkovChains(symbols=2, order=2, length=9, pool=4)
    assert task.chains is not None
    batch = task.sample(6, np.random.default_rng(0))
    predicted = task.predictors()["memorised 3-gram"](batch.tokens)
    for row, z in enumerate(batch.tokens.tolist()):
        for t in range(9):
            likelihood = np.ones(4)
            for i in range(2, t + 1):
                likelihood *= task.chains[:, z[i - 1] + 2 * z[i - 2], z[i]]
            weights = likelihood / likelihood.sum()
            expected = weights @ task.chains[:, z[t] + 2 * z[t - 1]] if t >= 1 else np.full(2, 0.5)
            np.testing.assert_allclose(predicted[row, t].numpy(), expected, atol=1e-12)
    rows = batch.latents["rows"].numpy()
    np.testing.assert_array_equal(rows, task.chains[batch.latents["chain"].numpy()])


def test_the_memorised_frequencies_are_stationary():
    chains = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 3)))
    frequency = stationary(chains, 1)
    torch.testing.assert_close(torch.einsum("ks,ksj->kj", frequency, chains), frequency, rtol=0, atol=1e-12)
    alternating = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(stationary(alternating, 1), torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    tokens = torch.tensor([[0, 2, 2]])
    weights = frequency[:, 0] * frequency[:, 2] ** 2
    expected = weights @ frequency / weights.sum()
    torch.testing.assert_close(memorised(tokens, frequency[:, None], 0)[0, -1], expected)


def test_samples_follow_their_chain_and_begin_uniformly():
    task = MarkovChains(symbols=2, order=2, length=400, pool=1, alpha=0.3)
    assert task.chains is not None
    batch = task.sample(200, np.random.default_rng(1))
    z, after = batch.tokens, batch.targets
    for context in range(4):
        here = (z[:, 1:] + 2 * z[:, :-1]) == context
        assert after[:, 1:][here].double().mean().item() == pytest.approx(task.chains[0, context, 1], abs=0.02)
    first = task.sample(4000, np.random.default_rng(2)).tokens[:, 0]
    assert first.double().mean().item() == pytest.approx(0.5, abs=0.03)
    assert torch.equal(batch.groups["start"], torch.arange(400).expand(200, -1) < 1)


def test_soft_targets_are_the_chains_own_rows():
    hard, soft = (MarkovChains(length=10, soft_targets=s).sample(4, np.random.default_rng(0)) for s in (False, True))
    assert torch.equal(hard.tokens, soft.tokens)
    assert torch.equal(soft.latents["next"], hard.targets)
    here = torch.arange(4)[:, None]
    torch.testing.assert_close(soft.targets, soft.latents["rows"][here, soft.tokens].float())


def test_other_successors_change_what_was_counted_and_nothing_else():
    task = MarkovChains(symbols=3, length=30)
    batch = task.sample(20, np.random.default_rng(0))
    pairs = task.corruptions()["successors"](batch, np.random.default_rng(1))
    assert pairs.answer is None
    with pytest.raises(InputError, match="expected sequences with one right output"):
        _ = pairs.right
    clean, corrupted = pairs.clean.tokens, pairs.corrupted.tokens
    for row in range(20):
        query = clean[row, -1]
        for t in range(29):
            changes = t > 0 and clean[row, t - 1] == query
            assert bool(clean[row, t] != corrupted[row, t]) == changes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"symbols": 1}, "task.symbols: expected a whole number of 2 or more, got 1"),
        ({"order": 70}, "task.length: expected a whole number of 71 or more tokens"),
        ({"order": 9, "symbols": 3}, "task.order: expected at most 4096 contexts, got 19683"),
        ({"alpha": 0.0}, "task.alpha: expected a number above 0, got 0.0"),
        ({"pool": 0}, "task.pool: expected a whole number of 1 or more chains or none, got 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError) as error:
        MarkovChains(**settings)
    assert str(error.value).startswith(message)
