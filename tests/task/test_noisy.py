"""The noisy triggers against sums over every set of triggers and every assignment of outputs."""

from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.task import noisy
from induction_memory.task.bayes import predict
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corpus import Corpus
from induction_memory.task.noisy import bayes, distribution_only

ABC = Corpus.from_text("abacabcbbcacbaac")


class Small(noisy.NoisyTriggers):
    """The task on a vocabulary of three letters."""

    @property
    def bigrams(self):
        return BigramTask(corpus=ABC, length=self.length, k=self.k, triggers=self.triggers)


def brute_force(task: Small, sequence: list[int]) -> np.ndarray:
    """Probabilities of the next token: all sets of triggers, all outputs, every transition multiplied out."""
    base, tau, n = task.bigrams, task.noise_token, task.n_inputs
    pi_q, pi_o = base.trigger_probabilities, base.output_probabilities

    def chance(triggers: tuple[int, ...]) -> float:
        total = 0.0
        for order in permutations(triggers):
            p, left = 1.0, 1.0
            for q in order:
                p, left = p * pi_q[q] / left if left > 1e-12 else 0.0, left - pi_q[q]
            total += p
        return total

    ahead = np.zeros(n)
    for triggers in combinations(np.flatnonzero(pi_q).tolist(), base.k):
        for outputs in product(range(tau), repeat=base.k):
            output = dict(zip(triggers, outputs, strict=True))

            def step(i: int, j: int, output: dict[int, int] = output) -> float:
                if i in output:
                    return (1 - task.noise) * (j == output[i]) + task.noise * (j == tau)
                if i == tau:
                    return base.unigram[j] if j < tau else 0.0
                return base.bigram[i, j] if j < tau else 0.0

            weight = chance(triggers) * np.prod([pi_o[q, o] for q, o in output.items()])
            weight *= np.prod([step(i, j) for i, j in pairwise(sequence)])
            ahead += weight * np.array([step(sequence[-1], j) for j in range(n)])
    return ahead / ahead.sum()


@pytest.mark.parametrize(("triggers", "k"), [("fixed", 2), ("random", 1), ("random", 2)])
def test_bayes_is_the_sum_over_all_triggers_and_outputs(triggers, k):
    task = Small(length=7, k=k, triggers=triggers, noise=0.3)
    tokens = task.sample(6, np.random.default_rng(0)).tokens
    predicted = bayes(task, tokens)
    for row, sequence in enumerate(tokens.tolist()):
        for t in range(len(sequence)):
            expected = brute_force(task, sequence[: t + 1])
            np.testing.assert_allclose(predicted[row, t].numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("triggers", ["fixed", "random"])
def test_without_noise_bayes_is_that_of_the_bigram_task(triggers):
    task = noisy.NoisyTriggers(length=24, k=3, triggers=triggers, noise=0.0)
    tokens = task.sample(5, np.random.default_rng(1)).tokens
    assert not bool((tokens == task.noise_token).any())
    expected = predict(task.bigrams, tokens).probabilities
    torch.testing.assert_close(bayes(task, tokens)[..., :-1], expected, rtol=0, atol=1e-12)


def test_samples_follow_the_rule():
    task = noisy.NoisyTriggers(length=64, k=5, noise=0.3)
    batch = task.sample(500, np.random.default_rng(2))
    tau, output_of = task.noise_token, torch.full((500, task.n_inputs), -1)
    output_of.scatter_(1, batch.latents["triggers"], batch.latents["outputs"])
    output = output_of.gather(1, batch.tokens)
    after_trigger = batch.targets[output >= 0]
    is_noise = after_trigger == tau
    assert bool((is_noise | (after_trigger == output[output >= 0])).all())
    assert abs(is_noise.double().mean().item() - 0.3) < 0.02
    assert not bool((batch.targets[output < 0] == tau).any())
    restarts = batch.targets[batch.tokens == tau]
    frequency = torch.bincount(restarts, minlength=task.n_inputs)[:-1].double() / len(restarts)
    assert np.abs(frequency.numpy() - task.bigrams.unigram).max() < 0.02


def test_in_context_means_that_the_output_has_been_seen():
    task = noisy.NoisyTriggers(length=30, k=3)
    batch = task.sample(20, np.random.default_rng(3))
    for row in range(20):
        sequence, seen = batch.tokens[row].tolist(), set()
        triggers = batch.latents["triggers"][row].tolist()
        for t, token in enumerate(sequence):
            if t and sequence[t - 1] in triggers and token != task.noise_token:
                seen.add(sequence[t - 1])
            expected = "global" if token not in triggers else "in_context" if token in seen else "first"
            assert [name for name, mask in batch.groups.items() if mask[row, t]] == [expected]


def test_the_distribution_alone_knows_the_noise_and_not_the_context():
    task = noisy.NoisyTriggers(k=3, noise=0.3)
    chain = distribution_only(task)
    q = int(task.bigrams.fixed_triggers[0])
    assert chain[q, -1] == 0.3
    torch.testing.assert_close(chain[q, :-1], torch.full((65,), 0.7 / 65, dtype=torch.float64))
    other = next(i for i in range(65) if i not in task.bigrams.fixed_triggers)
    np.testing.assert_allclose(chain[other, :-1].numpy(), task.bigrams.bigram[other])


def test_on_corrupted_sequences_the_answer_is_the_new_output():
    task = noisy.NoisyTriggers(length=40, k=4)
    batch = task.sample(50, np.random.default_rng(4))
    pairs = task.corruptions()["output"](batch, np.random.default_rng(5))
    for row in range(len(pairs.query)):
        cut = int(pairs.query[row]) + 1
        for side, expected in ((pairs.clean, pairs.answer), (pairs.corrupted, pairs.other)):
            last = bayes(task, side.tokens[row : row + 1, :cut])[0, -1]
            assert last[expected[row]] == pytest.approx(0.7)
    roles = pairs.roles
    here = torch.arange(len(pairs.query))
    assert torch.equal(pairs.clean.tokens[here, roles["trigger"]], pairs.clean.tokens[here, pairs.query])
    assert torch.equal(pairs.clean.tokens[here, roles["output"]], pairs.answer)


def test_impossible_sequences_and_settings_are_refused():
    task = noisy.NoisyTriggers(length=4, k=1, triggers="random")
    tau = task.noise_token
    with pytest.raises(InputError, match="tokens: expected sequences that the task can produce, got sequence 0"):
        bayes(task, torch.tensor([[20, tau, 21, tau]]))  # two triggers, where there is one
    with pytest.raises(InputError, match=r"task.noise: expected a number of 0 or more, at most 1, got 1.5"):
        noisy.NoisyTriggers(noise=1.5)
    with pytest.raises(InputError, match=r"task.k: expected 1 to 65 triggers"):
        noisy.NoisyTriggers(k=70)
