from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from induction_memory import BigramTask, sample
from induction_memory.errors import InputError
from induction_memory.task import Corpus, optimal_scores, predict, step_rng
from induction_memory.task.batch import masked_mean
from induction_memory.task.bayes import evidence
from induction_memory.task.trigger_posterior import member_probability, race, times
from tests.random_tasks import make, task_fields

ABCD = Corpus.from_text("abacabadbbcaddcabddcbaac")


@lru_cache(maxsize=256)
def set_probabilities(task: BigramTask) -> dict[frozenset[int], float]:
    """Probability of every set of triggers, summed over the orders in which it can be drawn."""
    pi_q = task.trigger_probabilities
    possible = np.flatnonzero(pi_q).tolist()
    chances: dict[frozenset[int], float] = {}
    for order in permutations(possible, task.k):
        p = 1.0
        for place, q in enumerate(order):
            p *= pi_q[q] / sum(pi_q[i] for i in possible if i not in order[:place])
        chances[frozenset(order)] = chances.get(frozenset(order), 0.0) + p
    return chances


def likelihood(task: BigramTask, sequence: list[int], triggers: frozenset[int]) -> float:
    """p(z_2..z_t | z_1, triggers), summed over each trigger's outputs."""
    p = 1.0
    for i in set(sequence[:-1]):
        after = [b for a, b in pairwise(sequence) if a == i]
        if i in triggers:
            p *= sum(task.output_probabilities[i, o] for o in range(task.vocab_size) if set(after) == {o})
        else:
            p *= np.prod(task.bigram[i, after])
    return p


def brute_force(task: BigramTask, sequence: list[int]) -> tuple[np.ndarray, float]:
    """Prediction after the whole sequence, and the posterior that its last token is a trigger."""
    prior = set_probabilities(task)

    def joint(z: list[int]) -> dict[frozenset[int], float]:
        return {triggers: p * likelihood(task, z, triggers) for triggers, p in prior.items()}

    here = joint(sequence)
    whole = sum(here.values())
    ahead = [sum(joint([*sequence, j]).values()) / whole for j in range(task.vocab_size)]
    return np.array(ahead), sum(p for triggers, p in here.items() if sequence[-1] in triggers) / whole


def assert_equals_brute_force(task: BigramTask, tokens: torch.Tensor, tolerance: float = 1e-10) -> None:
    prediction = predict(task, tokens)
    for row, sequence in enumerate(tokens.tolist()):
        for t in range(len(sequence)):
            ahead, posterior = brute_force(task, sequence[: t + 1])
            np.testing.assert_allclose(prediction.probabilities[row, t].numpy(), ahead, rtol=0, atol=tolerance)
            assert abs(prediction.trigger_posterior[row, t].item() - posterior) < tolerance


@settings(max_examples=60)
@given(task_fields(max_size=5))
def test_the_prediction_equals_brute_force_on_any_task(fields: dict[str, Any]):
    task = make({**fields, "length": min(fields["length"], 9)})
    assert_equals_brute_force(task, sample(task, 2, np.random.default_rng(0)).tokens)


@pytest.mark.parametrize("k", range(1, 7))
def test_the_prediction_equals_brute_force_for_every_number_of_triggers(k: int):
    pi_q = (0.6, 0.3, 0.06, 0.03, 0.009, 0.001)
    task = BigramTask(
        Corpus.from_text("abacabadbbcaeddcabfdedcbaacffe"), length=14, k=k, trigger_distribution=pi_q, outputs="bigram"
    )
    assert_equals_brute_force(task, sample(task, 3, step_rng(0, k)).tokens)


def test_the_oracle_itself_equals_a_sum_over_triggers_and_outputs():
    task = BigramTask(Corpus.from_text("abcacbbaac"), k=2, length=6, trigger_distribution=(0.5, 0.3, 0.2))
    z = sample(task, 1, step_rng(0, 0)).tokens[0].tolist()
    total, ahead = 0.0, np.zeros(3)
    for order in permutations(range(3), 2):
        first, second = order
        p_order = task.trigger_probabilities[first] * (
            task.trigger_probabilities[second] / (1 - task.trigger_probabilities[first])
        )
        for outputs in product(range(3), repeat=2):
            chain = task.bigram.copy()
            for q, o in zip(order, outputs, strict=True):
                chain[q] = np.eye(3)[o]
            p = p_order / 9 * np.prod([chain[a, b] for a, b in pairwise(z)])
            total, ahead = total + p, ahead + p * chain[z[-1]]
    np.testing.assert_allclose(brute_force(task, z)[0], ahead / total, atol=1e-14)


@pytest.mark.parametrize("concentration", [0.1, 1.0, 10.0])
def test_the_quadrature_gives_every_set_its_probability(concentration: float):
    rng = np.random.default_rng(0)
    for size in range(1, 7):
        p = np.maximum(rng.dirichlet(np.full(size, concentration)), 1e-7)
        task_p = tuple((p / p.sum()).tolist())
        corpus = Corpus.from_text("abcdef"[:size])
        for k in range(1, size + 1):
            task = BigramTask(corpus, k=k, trigger_distribution=task_p)
            at = race(torch.from_numpy(np.array(task.trigger_probabilities)), k)
            for triggers, chance in set_probabilities(task).items():
                value = torch.zeros(2, k + 1, len(at.weight), dtype=torch.float64)
                value[0, 0] = 1
                for i in range(size):
                    absent, arrived, arriving = at.waiting[:, i], at.arrived[:, i], at.arriving[:, i]
                    nothing = torch.zeros_like(absent)
                    value = times(
                        value, *((nothing, arrived, arriving) if i in triggers else (absent, nothing, nothing))
                    )
                np.testing.assert_allclose((value[1, k] @ at.weight).item(), chance, rtol=2e-11)


def test_the_quadrature_has_converged_for_the_papers_task():
    task = BigramTask()
    pi_q, pi_b, pi_o = (torch.from_numpy(np.array(x)) for x in (task.unigram, task.bigram, task.output_probabilities))
    tokens = sample(task, 2, step_rng(0, 0)).tokens
    member, other, _ = evidence(tokens, pi_b.log(), pi_o.log())
    fine = member_probability(race(pi_q, 5, step=0.1), member, other, tokens)
    for step, tolerance in ((0.5, 1e-4), (0.25, 1e-12)):
        coarse = member_probability(race(pi_q, 5, step=step), member, other, tokens)
        torch.testing.assert_close(coarse, fine, rtol=0, atol=tolerance)


def test_blocks_of_any_length_give_the_same_posterior():
    task = BigramTask(k=3, length=70)
    pi_q, pi_b, pi_o = (torch.from_numpy(np.array(x)) for x in (task.unigram, task.bigram, task.output_probabilities))
    tokens = sample(task, 5, step_rng(1, 0)).tokens
    member, other, _ = evidence(tokens, pi_b.log(), pi_o.log())
    alone = member_probability(race(pi_q, 3), member, other, tokens, block=1)
    for block in (2, 8, 33, 70, 128):
        torch.testing.assert_close(
            member_probability(race(pi_q, 3), member, other, tokens, block=block), alone, rtol=0, atol=1e-13
        )


def test_overwhelming_evidence_that_is_overturned_loses_nothing():
    # For hundreds of steps a and b look like the two triggers, at odds of 1e300 and more; then both break the rule.
    corpus = Corpus("abcd", ("a", "b", "c", "d"), np.full(4, 25), np.array([[1, 1, 49, 49]] * 4) * 10)
    task = BigramTask(corpus, k=2, length=500)
    tokens = torch.from_numpy(corpus.encode("ab" * 240 + "adcbcbadcba"))[None]
    prediction = predict(task, tokens)
    assert prediction.trigger_posterior[0, 478].item() > 1 - 1e-12
    assert prediction.trigger_posterior[0, -1] == 0
    for t in range(470, tokens.shape[1]):
        ahead, posterior = brute_force_in_logs(task, tokens[0, : t + 1].tolist())
        np.testing.assert_allclose(prediction.probabilities[0, t].numpy(), ahead, atol=1e-12)
        assert abs(prediction.trigger_posterior[0, t].item() - posterior) < 1e-12


def brute_force_in_logs(task: BigramTask, sequence: list[int]) -> tuple[np.ndarray, float]:
    """`brute_force` for a uniform pi_o and sequences so long that their probability underflows."""
    prior = set_probabilities(task)
    pairs = list(pairwise(sequence))
    after = {i: [b for a, b in pairs if a == i] for i in range(task.vocab_size)}
    logs, chains = [], []
    for triggers, p in prior.items():
        log, chain = np.log(p), task.bigram.copy()
        for i, successors in after.items():
            if i not in triggers:
                log += np.log(task.bigram[i, successors]).sum()
            elif successors:
                log += -np.log(task.vocab_size) if len(set(successors)) == 1 else -np.inf
                chain[i] = np.eye(task.vocab_size)[successors[0]]
            else:
                chain[i] = 1 / task.vocab_size
        logs.append(log)
        chains.append(chain[sequence[-1]])
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    is_trigger = np.array([sequence[-1] in triggers for triggers in prior])
    return weights @ np.array(chains), float(weights @ is_trigger)


def test_fixed_triggers_are_known_and_their_outputs_too_after_the_first_occurrence():
    task = BigramTask(triggers="fixed", k=5, length=64)
    batch = sample(task, 16, step_rng(0, 0))
    prediction = predict(task, batch.tokens)
    torch.testing.assert_close(prediction.trigger_posterior, (~batch.global_).double(), rtol=0, atol=0)
    assert (prediction.probabilities.gather(-1, batch.targets[..., None])[..., 0][batch.in_context] == 1).all()
    torch.testing.assert_close(
        prediction.probabilities[batch.global_], torch.from_numpy(task.bigram[batch.tokens[batch.global_].numpy()])
    )
    scores = optimal_scores(task, batch)
    assert scores.in_context.accuracy == 1
    assert scores.in_context.loss == 0
    assert abs(scores.first_occurrence.loss - np.log(65)) < 1e-12


def test_the_posterior_is_calibrated_and_no_simpler_reader_does_better():
    task = BigramTask(length=128)
    batch = sample(task, 64, step_rng(2, 0))
    prediction = predict(task, batch.tokens)
    is_trigger = (~batch.global_).double()
    mean, error = masked_mean(is_trigger - prediction.trigger_posterior, torch.ones_like(batch.global_))
    assert abs(mean) < 4 * error
    unsure = (prediction.trigger_posterior > 0.2) & (prediction.trigger_posterior < 0.8)
    mean, error = masked_mean(is_trigger - prediction.trigger_posterior, unsure)
    assert unsure.sum() > 50
    assert abs(mean) < 4 * error

    targets = batch.targets.unsqueeze(-1)
    best = -prediction.probabilities.gather(-1, targets).log().mean()
    for share in (0.02, 0.1, 0.3):  # the bigram table, mixed with a copy of what followed the last time
        _, _, followed = evidence(batch.tokens, torch.zeros(65, 65).double(), torch.zeros(65, 65).double())
        copied = (followed == batch.targets).double() * share
        bigram = torch.from_numpy(task.bigram[batch.tokens.numpy(), batch.targets.numpy()])
        simple = -(copied + (1 - share - 0.01) * bigram + 0.01 / 65).log().mean()
        assert best < simple


def test_scores_are_means_over_their_positions_with_errors_between_sequences():
    values = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    mean, error = masked_mean(values, mask)
    assert mean == 2
    # Sums of deviations -1 and 1 in two sequences: sqrt(2 * (1 + 1) / 1) / 3.
    assert abs(error - 2 / 3) < 1e-12
    assert all(x.isnan() for x in masked_mean(values, torch.zeros_like(mask)))
    assert masked_mean(values[:1], mask[:1])[1].isnan()
    first = torch.tensor([[True, True], [False, False]])
    assert masked_mean(values, first)[0] == 1.5
    assert masked_mean(values, first)[1].isnan()  # one sequence says nothing about others


def test_errors_between_sequences_are_those_of_repeated_batches():
    task = BigramTask(ABCD, k=1, length=12)
    runs = [optimal_scores(task, sample(task, 40, step_rng(3, step))).overall for step in range(30)]
    spread = np.std([run.loss for run in runs], ddof=1)
    assert 0.6 < np.mean([run.loss_error for run in runs]) / spread < 1.6


def test_a_sequence_that_the_task_cannot_produce_is_refused():
    task = BigramTask(ABCD, k=1, triggers="fixed", trigger_characters=("a",))
    with pytest.raises(InputError, match=r"^tokens: expected sequences that the task can produce, got sequence 1"):
        predict(task, torch.tensor([[0, 1, 0, 1], [0, 1, 0, 2]]))
    never = BigramTask(Corpus.from_text("ababab"), k=1, trigger_distribution=(1.0, 0.0))
    with pytest.raises(InputError, match=r"^tokens: expected sequences that the task can produce, got sequence 0"):
        predict(never, torch.tensor([[1, 1]]))
    with pytest.raises(InputError, match=r"^tokens: expected ids of 0 to 3 \(the vocabulary\), got 4"):
        predict(task, torch.tensor([[0, 4]]))


def test_one_token_is_enough_to_predict_from():
    task = BigramTask(ABCD, k=2, length=1)
    assert_equals_brute_force(task, torch.tensor([[0], [3]]))
