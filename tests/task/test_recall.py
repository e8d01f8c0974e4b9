"""Factual recall against a loop over all facts."""

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.task.factual_recall import FactualRecall

SMALL = FactualRecall(subjects=4, relations=3, answers=2, noise_tokens=3, length=6)


def test_readers_average_over_the_facts_that_a_prefix_leaves_possible():
    tokens = SMALL.sample(30, np.random.default_rng(0)).tokens
    predicted = {name: predictor(tokens) for name, predictor in SMALL.predictors().items()}
    for row, z in enumerate(tokens.tolist()):
        for t in range(6):
            subjects = [i for i in z[: t + 1] if i < 4] or range(4)
            relations = [i - 4 for i in z[: t + 1] if 4 <= i < 7] or range(3)
            for name, who, what in (
                ("marginal", range(4), range(3)),
                ("relation", range(4), relations),
                ("fact", subjects, relations),
            ):
                answers = [SMALL.facts[s, r] for s in who for r in what]
                expected = np.bincount(answers, minlength=6) / len(answers)
                np.testing.assert_allclose(predicted[name][row, t].numpy(), expected, atol=1e-12)


def test_each_sequence_holds_one_fact_and_asks_for_its_answer():
    batch = SMALL.sample(200, np.random.default_rng(1))
    for z, target in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
        (subject,), (relation,) = [i for i in z if i < 4], [i - 4 for i in z if 4 <= i < 7]
        assert target == SMALL.facts[subject, relation]
        assert z[-1] == SMALL.asking
        assert all(7 <= i < 10 for i in z[:-1] if i >= 7)
    assert batch.counted.tolist() == [[False] * 5 + [True]] * 200
    assert SMALL.n_outputs == 6
    assert (SMALL.facts // 2 == np.arange(3)).all()  # each relation has answers of its own


def test_sources_are_where_subject_and_relation_stand():
    batch = SMALL.sample(20, np.random.default_rng(2))
    sources = SMALL.sources(batch)
    here = torch.arange(20)
    for part, latent, first in (("subject", "subject", 0), ("relation", "relation", 4)):
        assert bool((sources[part].sum((1, 2)) == 1).all())
        place = sources[part][:, -1].int().argmax(1)
        assert torch.equal(batch.tokens[here, place] - first, batch.latents[latent])


@pytest.mark.parametrize("part", ["subject", "relation"])
def test_the_corrupted_sequence_asks_for_another_fact(part):
    batch = SMALL.sample(40, np.random.default_rng(3))
    pairs = SMALL.corruptions()[part](batch, np.random.default_rng(4))
    fact = SMALL.predictors()["fact"]
    assert torch.equal(fact(pairs.clean.tokens)[:, -1].argmax(-1), pairs.answer)
    assert torch.equal(fact(pairs.corrupted.tokens)[:, -1].argmax(-1), pairs.other)
    assert bool((pairs.answer != pairs.other).all())
    assert bool(((pairs.clean.tokens != pairs.corrupted.tokens).sum(1) == 1).all())


def test_associations_hold_each_fact():
    ideals = SMALL.associations()
    for s in range(4):
        for r in range(3):
            answer = SMALL.facts[s, r]
            assert ideals["subject"].strength[answer, s] == 1
            assert ideals["relation"].strength[answer, 4 + r] == 1
    assert ideals["subject"].strength.sum() == 12


def test_bad_settings_and_sequences_are_refused():
    with pytest.raises(InputError, match=r"task.noise_tokens: expected 1 or more where task.length is above 3, got 0"):
        FactualRecall(noise_tokens=0)
    with pytest.raises(InputError, match=r"tokens: expected at most one subject per sequence, got 2"):
        SMALL.predictors()["fact"](torch.tensor([[0, 1, 5, 10]]))
