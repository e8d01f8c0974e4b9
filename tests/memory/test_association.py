"""One memory: its recall and finer readings, its parts, and the side that is given."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from induction_memory.errors import InputError
from induction_memory.memory import (
    Association,
    causal,
    first_lasting,
    hits,
    margin,
    matching,
    rank,
    recall,
    signal_to_interference,
    soft_recall,
    store,
)
from tests.memory import slow_association as slow


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_association(seed: int, given: str, *, masked: bool, asked: bool) -> Association:
    """Six inputs, seven outputs; some items have a partner, some candidates are not allowed."""
    generator = torch.Generator().manual_seed(seed)
    ideal = torch.zeros(7, 6, dtype=torch.float64)
    n_given, n_candidates = (6, 7) if given == "input" else (7, 6)
    partners = torch.zeros(7, 6, dtype=torch.bool)
    for item in range(n_given):
        if item % 3 != 2:  # every third is not asked
            candidate = int(torch.randint(n_candidates, (1,), generator=generator))
            partners[(candidate, item) if given == "input" else (item, candidate)] = True
    ideal[partners] = 1.0
    if asked:
        ideal = ideal * (torch.rand(7, 6, generator=generator) < 0.5)
    allowed = (torch.rand(7, 6, generator=generator) < 0.5) | partners if masked else None
    W, u, v = draw(5, 4, seed=seed), draw(6, 4, seed=seed + 10), draw(7, 5, seed=seed + 20)
    return Association("W", W, u, v, ideal, given, partners if asked else None, allowed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_every_reading_equals_the_slow_loops(seed, side, masked, asked):
    a = random_association(seed, side, masked=masked, asked=asked)
    torch.testing.assert_close(a.scores, torch.tensor(slow.scores(a), dtype=torch.float64))
    assert hits(a).tolist() == slow.hits(a)
    assert recall(a).item() == pytest.approx(np.mean(slow.hits(a)))
    assert margin(a).tolist() == pytest.approx(slow.margins(a))
    assert rank(a).tolist() == slow.ranks(a)
    assert soft_recall(a).item() == pytest.approx(slow.soft_recall(a))
    assert signal_to_interference(a).item() == pytest.approx(slow.signal_to_interference(a))
    assert torch.equal(margin(a) > 0, hits(a))


def test_outer_products_of_orthonormal_vectors_are_recalled_and_zeros_are_not():
    u, v = torch.eye(4), torch.eye(4).flip(0)
    stored = v.T @ u  # sum of v_i u_i^T
    assert recall(matching(stored, u, v)) == 1
    assert recall(matching(torch.zeros(4, 4), u, v)) == 0
    assert torch.equal(store(u, v), stored)


def test_one_wrong_pair_out_of_four_recalls_three_quarters():
    a = matching(torch.eye(4), torch.eye(4), torch.eye(4), torch.tensor([0, 1, 2, 2]))
    assert recall(a) == 0.75
    assert rank(a).tolist() == [1, 1, 1, 4]


def test_margin_rank_and_soft_recall_of_a_matrix_worked_out_by_hand():
    eye = torch.eye(3, dtype=torch.float64)
    W = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 0.0], [1.0, 0.0, 3.0]], dtype=torch.float64)  # columns: inputs
    a = matching(W, eye, eye)
    assert margin(a).tolist() == [1.0, -0.5, 3.0]
    assert rank(a).tolist() == [1, 2, 1]
    e = math.exp
    by_hand = (e(2) / (e(2) + 1 + e(1)) + e(0.5) / (e(1) + e(0.5) + 1) + e(3) / (2 + e(3))) / 3
    assert soft_recall(a).item() == pytest.approx(by_hand)
    assert signal_to_interference(a).item() == pytest.approx(5.5 / 3 / math.sqrt((1 + 1) / 6))


def test_the_reversed_memory_lets_the_other_side_compete():
    """Column 1 is largest at row 0: input 1 recalls output 0, while output 1 still recalls input 1."""
    W = torch.tensor([[2.0, 1.0], [0.0, 0.5]])
    a = matching(W, torch.eye(2), torch.eye(2))
    assert hits(a).tolist() == [True, False]
    assert hits(a.reversed()).tolist() == [True, True]
    assert a.reversed().reversed().given == "input"


def test_weights_of_stored_pairs_are_read_back_as_scores():
    ideal = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, -3.0], [1.0, 0.0, 0.0]])
    u, v = torch.eye(3), torch.eye(3)
    W = store(u, v, ideal)
    assert torch.equal(Association("W", W, u, v, ideal).scores, ideal)


def test_a_stack_of_matrices_gives_the_same_as_one_after_the_other():
    W, u, v = draw(3, 2, 5, 4), draw(6, 4, seed=1), draw(6, 5, seed=2)
    moving = draw(3, 1, 6, 4, seed=3)  # embeddings that change with the step
    for reading in (recall, margin, rank, soft_recall, signal_to_interference):
        for inputs in (u, moving):
            stacked = reading(matching(W, inputs, v, allowed=causal(6)))
            for step, head in itertools.product(range(3), range(2)):
                alone = matching(W[step, head], inputs if inputs is u else inputs[step, 0], v, allowed=causal(6))
                torch.testing.assert_close(stacked[step, head], reading(alone), msg=reading.__name__)


def test_the_causal_mask_hides_later_keys():
    keys = queries = torch.eye(3)
    W = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [5.0, 5.0, 0.0]])  # one row per key, one column per query
    previous = torch.tensor([0, 1])
    assert recall(matching(W, queries[1:], keys, previous)) == 0.5  # query 1 prefers key 2, its future
    assert causal(3)[1:].tolist() == [[True, True, False], [True, True, True]]
    assert recall(matching(W, queries[1:], keys, previous, allowed=causal(3)[1:].mT)) == 1


def test_a_part_keeps_its_pairs_and_does_not_compute_scores_again():
    a = replace(matching(draw(6, 6), draw(6, 6, seed=1), draw(6, 6, seed=2)), input_names=tuple("abcdef"))
    before = a.at([1, 3], slice(1, 5), "part")
    table = a.scores
    part = a.at([1, 3], slice(1, 5), "part")
    for one in (before, part):
        torch.testing.assert_close(one.scores, table[1:5][:, [1, 3]])
        assert one.targets.tolist() == [0, 2]
        assert (one.name, one.input_names) == ("part", ("b", "d"))
    assert "scores" in part.at().__dict__


def test_an_item_with_several_partners_has_no_recall():
    a = replace(matching(torch.eye(3), torch.eye(3), torch.eye(3)), ideal=torch.ones(3, 3))
    with pytest.raises(InputError, match=r"needs one target for each item of W, items \[0, 1"):
        recall(a)


def test_a_target_that_is_not_allowed_is_refused():
    allowed = torch.ones(3, 3, dtype=torch.bool)
    allowed[1, 1] = False
    with pytest.raises(InputError, match="allowed: expected every target among its candidates"):
        rank(matching(torch.eye(3), torch.eye(3), torch.eye(3), allowed=allowed))


def test_a_score_that_is_nan_recalls_nothing():
    nan, eye = torch.nan, torch.eye(3)
    rival, target = torch.eye(3), torch.eye(3)
    rival[1, 0] = nan
    target[0, 0] = nan
    a = matching(torch.stack([torch.full((3, 3), nan), rival, target]), eye, eye)
    a.__dict__["scores"] = a.W  # a product would spread each nan over its column
    for allowed in (torch.ones(3, 3, dtype=torch.bool), causal(3)):
        recalled = hits(a.at(allowed=allowed))
        assert not recalled[0].any()
        assert recalled[2].tolist() == [False, True, True]
    assert hits(a).tolist() == [[False] * 3, [False, True, True], [False, True, True]]
    assert rank(a).tolist() == [[3, 3, 3], [2, 1, 1], [3, 1, 1]]
    assert margin(a)[0].isnan().all()
    assert soft_recall(a)[0].isnan()


def test_pairs_are_read_from_their_names():
    positions = replace(
        matching(torch.eye(4), torch.eye(4)[:3], torch.eye(4)[1:]), input_names=(1, 2, 3), output_names=(2, 3, 4)
    )
    assert positions.number("2", "erase") == (1, 1)
    assert positions.number("1->4", "erase") == (0, 2)
    for text, says in (("4", "erase: expected positions 1 to 3, got '4'"), ("1->1", "expected positions 2 to 4")):
        with pytest.raises(InputError, match=says):
            positions.number(text, "erase")
    tokens = replace(matching(torch.eye(3), torch.eye(3), torch.eye(3)), input_names=tuple("a\n>"))
    tokens = replace(tokens, output_names=tokens.input_names)
    assert tokens.number("\\n", "erase") == (1, 1)
    assert tokens.number(">->a", "erase") == (2, 0)


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_first_lasting_equals_the_definition(holds):
    steps = np.arange(len(holds)) * 10
    from_here = [step for i, step in enumerate(steps) if all(holds[i:])]
    expected = from_here[0] if from_here else np.nan
    np.testing.assert_equal(first_lasting(np.array(holds), steps).item(), expected)
    np.testing.assert_equal(first_lasting(torch.tensor(holds)[:, None], steps)[0], expected)
