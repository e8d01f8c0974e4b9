from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.stats import chi2_contingency, chisquare

from bench.sampler import sample_by_token
from induction_memory import BigramTask, sample
from induction_memory.errors import InputError
from induction_memory.task import Batch, Corpus, from_text, make_batch, step_rng
from induction_memory.task.sampler import alias_table, draw_triggers
from tests.random_tasks import make, task_fields

UNLIKELY = 1e-4  # a fixed seed: a test that passes once passes always
LETTERS = Corpus.from_text("the cat sat on the mat; the dog ate the cat's hat, and that was that.")


def count_by_hand(tokens: list[int], triggers: list[int]) -> list[int]:
    """Occurrence counts as they are defined."""
    return [tokens[: t + 1].count(z) if z in triggers else 0 for t, z in enumerate(tokens)]


def goodness(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of the chi-square test; what cannot happen must not, and rare outcomes are pooled."""
    assert (observed[probabilities == 0] == 0).all()
    expected = probabilities / probabilities.sum() * observed.sum()
    rare = expected < 5
    seen = np.append(observed[~rare], observed[rare].sum())
    due = np.append(expected[~rare], expected[rare].sum())
    seen, due = seen[due > 0], due[due > 0]
    return float(chisquare(seen, due).pvalue) if len(due) > 1 else 1.0


def first_tokens(batch: Batch, n: int) -> np.ndarray:
    return np.bincount(batch.tokens[:, 0].numpy(), minlength=n)


def bigrams_away_from_triggers(batch: Batch, n: int) -> np.ndarray:
    z, after = batch.tokens[batch.global_].numpy(), batch.targets[batch.global_].numpy()
    return np.bincount(z * n + after, minlength=n * n).reshape(n, n)


@pytest.mark.slow
@settings(max_examples=150)
@given(task_fields())
def test_every_batch_keeps_the_rules_of_its_task(fields: dict[str, Any]):
    task = make(fields)
    batch = sample(task, 6, np.random.default_rng(0))
    assert batch.tokens.shape == batch.targets.shape == batch.counts.shape == (6, task.length)
    assert batch.triggers.shape == batch.outputs.shape == (6, task.k)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    if task.fixed_triggers is not None:
        assert (batch.triggers.numpy() == task.fixed_triggers).all()
    for row in range(6):
        tokens, targets = batch.tokens[row].tolist(), batch.targets[row].tolist()
        output = dict(zip(batch.triggers[row].tolist(), batch.outputs[row].tolist(), strict=True))
        assert len(output) == task.k
        assert task.unigram[tokens[0]] > 0
        for q, o in output.items():
            assert task.trigger_probabilities[q] > 0
            assert task.output_probabilities[q, o] > 0
            assert not (task.outputs_differ and q == o)
            assert task.output_tokens[o]
        for z, after in zip(tokens, targets, strict=True):
            assert after == output[z] if z in output else task.bigram[z, after] > 0
        assert batch.counts[row].tolist() == count_by_hand(tokens, list(output))
    together = batch.in_context.int() + batch.global_.int() + batch.first_occurrence.int()
    assert (together == 1).all()


def test_masks_mean_what_their_names_say():
    task = BigramTask(Corpus.from_text("abcd"), k=1)
    batch = make_batch(
        task,
        tokens=torch.tensor([[0, 1, 0, 1, 2, 0]]),
        triggers=torch.tensor([[0]]),
        outputs=torch.tensor([[1]]),
    )
    assert batch.counts.tolist() == [[1, 0, 2, 0, 0]]
    assert batch.first_occurrence.tolist() == [[True, False, False, False, False]]
    assert batch.in_context.tolist() == [[False, False, True, False, False]]
    assert batch.global_.tolist() == [[False, True, False, True, True]]


def test_bigrams_away_from_triggers_follow_the_bigram_table():
    task = BigramTask(k=5)
    batch = sample(task, 512, step_rng(1, 0))
    observed = bigrams_away_from_triggers(batch, task.vocab_size)
    assert goodness(first_tokens(sample(task, 4000, step_rng(1, 1)), 65), task.unigram) > UNLIKELY
    values = [goodness(observed[i], task.bigram[i]) for i in range(65) if observed[i].sum() > 100]
    assert len(values) > 30
    assert min(values) * len(values) > UNLIKELY
    assert 0.001 < np.median(values) < 0.999


def test_triggers_are_always_followed_by_their_outputs():
    batch = sample(BigramTask(k=5), 256, step_rng(2, 0))
    matches = batch.tokens[:, :, None] == batch.triggers[:, None, :]
    assert torch.equal(matches.any(-1), ~batch.global_)
    outputs = batch.outputs[:, None, :].expand_as(matches)[matches]
    assert torch.equal(batch.targets[~batch.global_], outputs)


def ordered_draws(pi_q: np.ndarray, k: int) -> dict[tuple[int, ...], float]:
    """Probability of every ordered draw without replacement, by its definition."""
    chances = {}
    for order in permutations(np.flatnonzero(pi_q).tolist(), k):
        p, left = 1.0, 1.0
        for q in order:
            p, left = p * pi_q[q] / left, left - pi_q[q]
        chances[order] = p
    return chances


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_triggers_are_successive_draws_without_replacement(k: int):
    pi_q = np.array([0.5, 0.25, 0.0, 0.15, 0.1])
    chances = ordered_draws(pi_q, k)
    assert abs(sum(chances.values()) - 1) < 1e-12
    drawn = [tuple(row) for row in draw_triggers(pi_q, k, 20_000, np.random.default_rng(k)).tolist()]
    observed = np.array([drawn.count(order) for order in chances])
    assert observed.sum() == 20_000
    assert goodness(observed, np.array(list(chances.values()))) > UNLIKELY


@pytest.mark.parametrize(
    "choice",
    [
        {"outputs": "uniform"},
        {"outputs": "bigram"},
        {"outputs_differ": True},
        {"output_part": "test", "outputs_differ": True},
    ],
)
def test_outputs_follow_their_distribution_given_the_trigger(choice: dict[str, Any]):
    task = BigramTask(LETTERS, k=3, length=1, trigger_distribution="uniform", **choice)
    batch = sample(task, 8000, step_rng(3, 0))
    n = task.vocab_size
    pairs = np.bincount((batch.triggers * n + batch.outputs).flatten().numpy(), minlength=n * n).reshape(n, n)
    values = [goodness(pairs[q], task.output_probabilities[q]) for q in range(n)]
    assert min(values) * n > UNLIKELY


@pytest.mark.parametrize("triggers", ["random", "fixed"])
def test_the_per_token_loop_draws_from_the_same_distribution(triggers: Any):
    task = BigramTask(Corpus.from_text("abacabadbbcaddca"), k=2, length=12, triggers=triggers, outputs_differ=True)
    rng = np.random.default_rng(4)
    slow = [sample_by_token(task, rng) for _ in range(1500)]
    fast = sample(task, 6000, rng)
    for statistic in (
        lambda tokens, counts: tokens[5] * 4 + tokens[6],  # a bigram in the middle
        lambda tokens, counts: tokens[12],  # the end
        lambda tokens, counts: max(counts),
        lambda tokens, counts: sum(count == 1 for count in counts),
    ):
        one = [statistic(tokens, counts) for tokens, counts in slow]
        whole = torch.cat([fast.tokens, fast.targets[:, -1:]], 1).tolist()
        other = [statistic(tokens, counts) for tokens, counts in zip(whole, fast.counts.tolist(), strict=True)]
        size = max(one + other) + 1
        table = np.stack([np.bincount(one, minlength=size), np.bincount(other, minlength=size)])
        table = table[:, table.sum(0) > 20]
        _, p, *_ = chi2_contingency(table)
        assert p > UNLIKELY  # pyright: ignore[reportOperatorIssue]


def test_the_loops_counts_are_those_of_the_definition():
    task = BigramTask(LETTERS, k=4, length=60)
    tokens, counts = sample_by_token(task, np.random.default_rng(0))
    triggers = sorted({z for z, count in zip(tokens, counts, strict=False) if count})
    assert counts == count_by_hand(tokens[:-1], triggers)


def test_the_same_seed_gives_the_same_batch_on_any_number_of_threads():
    def draw() -> Batch:
        return sample(BigramTask(), 64, step_rng(5, 17))

    threads = torch.get_num_threads()
    first = draw()
    torch.set_num_threads(threads + 1)
    second = draw()
    torch.set_num_threads(threads)
    for name in ("tokens", "targets", "counts", "triggers", "outputs"):
        assert torch.equal(getattr(first, name), getattr(second, name))


def test_a_step_draws_the_same_whatever_was_drawn_before_and_differs_from_other_steps():
    task = BigramTask(k=2, length=16)
    direct = sample(task, 8, step_rng(0, 3))
    for step in range(3):
        sample(task, 8 + step, step_rng(0, step))
    assert torch.equal(sample(task, 8, step_rng(0, 3)).tokens, direct.tokens)
    for other in (step_rng(0, 2), step_rng(1, 3), step_rng(3, 0)):
        assert not torch.equal(sample(task, 8, other).tokens, direct.tokens)


def test_a_longer_sequence_begins_like_a_shorter_one():
    short, long = (sample(BigramTask(length=length), 8, step_rng(0, 0)) for length in (40, 100))
    assert torch.equal(long.tokens[:, :40], short.tokens)


def test_a_batch_can_be_sliced():
    batch = sample(BigramTask(k=3, length=9), 7, step_rng(0, 0))
    assert len(batch) == 7
    assert len(batch[2:5]) == 3
    assert torch.equal(batch[2:5].outputs, batch.outputs[2:5])
    assert torch.equal(batch[batch.tokens[:, 0] == batch.tokens[0, 0]].tokens[0], batch.tokens[0])
    assert torch.equal(batch[torch.tensor([6, 0])].counts, batch.counts[[6, 0]])


def test_a_token_without_successors_is_followed_by_a_draw_from_the_unigram_distribution():
    task = BigramTask(Corpus.from_text("aaabaaac"), k=1, length=40, triggers="fixed", trigger_characters=("b",))
    batch = sample(task, 2000, step_rng(6, 0))
    after_c = np.bincount(batch.targets[batch.tokens == 2].numpy(), minlength=3)
    assert after_c.sum() > 500
    assert goodness(after_c, task.unigram) > UNLIKELY


def test_alias_tables_hold_their_distribution_exactly():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(9, 0.3), size=20)
    p[p < 0.05] = 0
    p /= p.sum(1, keepdims=True)
    table = alias_table(p)
    accept, alias = table.accept.reshape(20, 9), table.alias.reshape(20, 9)
    for row in range(20):
        mass = accept[row] / 9
        np.add.at(mass, alias[row], (1 - accept[row]) / 9)
        np.testing.assert_allclose(mass, p[row], atol=1e-14)
        assert (mass[p[row] == 0] == 0).all()


def test_the_smallest_and_largest_uniform_numbers_draw_only_what_is_possible():
    table = alias_table(np.array([[0.0, 0.3, 0.7, 0.0]]))
    edges = np.array([k / 4 for k in range(4)] + [np.nextafter(k / 4, 0) for k in range(1, 5)])
    assert set(table.draw(np.zeros(8, dtype=np.int64), edges).tolist()) <= {1, 2}


def test_a_text_becomes_a_batch_of_one():
    task = BigramTask()
    batch = from_text(task, "hello")
    assert task.tables.decode(batch.tokens[0]) == "hell"
    assert task.tables.decode(batch.targets[0]) == "ello"
    assert batch.triggers.shape == batch.outputs.shape == (1, 0)
    assert batch.global_.all()


def test_a_given_batch_is_a_copy():
    tokens, none = np.zeros((1, 3), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
    batch = make_batch(BigramTask(), tokens, none, none)
    tokens[:] = 1
    assert batch.tokens.tolist() == [[0, 0]]


def test_bad_input_is_refused_in_one_line(unchecked):
    task = BigramTask(LETTERS, k=2)
    rng = np.random.default_rng(0)
    two, none = torch.tensor([[0, 1]]), torch.zeros(1, 0, dtype=torch.int64)
    cases = [
        (lambda: sample(task, 0, rng), "sequences: expected 1 to "),
        (lambda: step_rng(-1, 0), "seed: expected a whole number of 0 or more, got -1"),
        (lambda: step_rng(0, -1), "step: expected a whole number of 0 or more, got -1"),
        (lambda: from_text(task, "a"), "text: expected 2 or more tokens (an input and a target), got 'a'"),
        (lambda: from_text(task, "a#"), "text: expected tokens of the vocabulary"),
        (lambda: make_batch(task, two[:, :1], none, none), "tokens: expected 2 or more per sequence, got 1"),
        (lambda: make_batch(task, two + 90, none, none), "tokens: expected ids of 0 to 16 (the vocabulary), got 90"),
        (lambda: make_batch(task, two, none[:0], none[:0]), "triggers: expected one row per sequence (1), got 0"),
        (lambda: make_batch(task, two, two, none), "outputs: expected shape (1, 2), got (1, 0)"),
        (lambda: make_batch(task, two, two - 1, two), "triggers: expected ids of 0 to 16 (the vocabulary), got -1"),
    ]
    for call, message in cases:
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)
