"""Copying: what is asked, and what tells a shortcut from an induction head."""

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.task.copying import Copying
from induction_memory.task.predictors import predictions

TASK = Copying(alphabet=10, spans=(1, 2, 4))


def right(task: Copying, reader: Copying, n: int = 400) -> dict[str, float]:
    """How often each of the reader's predictors is right on the task."""
    batch = task.sample(n, np.random.default_rng(0))
    found = predictions(reader.predictors(), batch.tokens, task.n_outputs)
    targets = batch.targets[batch.counted]
    return {name: p[batch.counted].gather(1, targets[:, None]).mean().item() for name, p in found.items()}


def test_a_sequence_asks_for_what_followed_its_trigger():
    batch = TASK.sample(100, np.random.default_rng(0))
    spans = set()
    for z, asked, target in zip(batch.tokens.tolist(), batch.counted.tolist(), batch.targets.tolist(), strict=True):
        first, second = [t for t, token in enumerate(z) if token == TASK.trigger]
        assert asked == [t == second for t in range(TASK.length)]
        assert target[second] == z[first + 1]
        assert second == 2 * first + 2
        spans.add(first)
    assert spans == {1, 2, 4}
    assert TASK.length == 11


def test_in_training_both_are_right_and_elsewhere_only_the_induction_head_is():
    assert right(TASK, TASK) == {"uniform": pytest.approx(0.1), "shortcut": 1.0, "induction": 1.0}
    elsewhere = TASK.variants()["elsewhere"]
    batch = elsewhere.sample(200, np.random.default_rng(1))
    second = batch.counted.int().argmax(1)
    assert set(second.tolist()) == {4, 6, 10}  # the query stands where it did in training
    assert bool((batch.latents["first"] * 2 + 2 != second).all())
    scores = right(elsewhere, TASK)
    assert scores["induction"] == 1
    assert scores["shortcut"] < 0.2


def test_any_two_distances_leave_the_middle_to_chance():
    task = Copying(alphabet=10, spans=tuple(range(1, 9)), placement="any")
    batch = task.sample(2000, np.random.default_rng(5))
    query, first = batch.counted.int().argmax(1), batch.latents["first"]
    after = query - first - 2
    assert set(first.tolist()) == set(after.tolist()) == set(range(1, 9))
    assert abs((first == after).double().mean().item() - 1 / 8) < 0.03
    scores = right(task, task, 2000)
    assert scores["induction"] == 1
    assert scores["shortcut"] < 0.35


def test_other_spans_are_those_that_training_left_out():
    assert TASK.variants()["other spans"].spans == (3,)
    assert TASK.variants()["other spans"].length == TASK.length
    assert "other spans" not in Copying(spans=(1, 2)).variants()


@pytest.mark.parametrize("kind", ["output", "trigger"])
def test_corruptions_change_one_token(kind):
    batch = TASK.sample(30, np.random.default_rng(2))
    pairs = TASK.corruptions()[kind](batch, np.random.default_rng(3))
    changed = pairs.clean.tokens != pairs.corrupted.tokens
    assert bool((changed.sum(1) == 1).all())
    assert torch.equal(changed.int().argmax(1), pairs.roles[kind])
    induction = TASK.predictors()["induction"](pairs.corrupted.tokens)[torch.arange(30), pairs.query]
    if kind == "output":
        assert torch.equal(induction.argmax(-1), pairs.other)
    else:
        assert bool((induction == 0.1).all())


def test_sources_of_the_query():
    batch = TASK.sample(20, np.random.default_rng(4))
    sources = TASK.sources(batch)
    query = batch.counted.int().argmax(1)
    here = torch.arange(20)
    assert torch.equal(sources["induction"][here, query].int().argmax(-1), batch.latents["first"] + 1)
    assert torch.equal(sources["shortcut"][here, query], sources["induction"][here, query])
    assert bool((sources["induction"].sum((1, 2)) == 1).all())


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match=r"task.spans: expected at least one, got none"):
        Copying(spans=())
    with pytest.raises(InputError, match=r"task.spans: expected different ones"):
        Copying(spans=(2, 2))
    with pytest.raises(InputError, match=r"task.spans: expected 1 or more where the output .*, got 0"):
        Copying(spans=(0, 2), placement="elsewhere")
