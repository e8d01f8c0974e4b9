import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.memory import Association, alignment, explained, matching, project, set_scores, truncate
from induction_memory.memory.edits import pair_scores, strength
from tests.memory import slow_association as slow


def random_memory(n=4, d=16, heads=2):
    generator = torch.Generator().manual_seed(0)
    W, u, v = (torch.randn(shape, generator=generator) for shape in ((heads, d, d), (heads, n, d), (heads, n, d)))
    return matching(W, u, v)


def single(seed=0, ideal=None):
    generator = torch.Generator().manual_seed(seed)
    W, v, u = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 5), (4, 6), (3, 5)))
    ideal = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, -1], [0.5, 0, 0]]) if ideal is None else ideal
    return Association("W", W, u, v, ideal.double())


def test_one_pair_is_set_by_the_rank_one_edit_written_by_hand():
    a = random_memory(n=1, heads=1)
    W, u, v = a.W[0], a.inputs[0, 0], a.outputs[0, 0]
    by_hand = W + (3 - v @ W @ u) * torch.outer(v, u) / (v.square().sum() * u.square().sum())
    torch.testing.assert_close(set_scores(a, a.pairs, torch.full((1, 1), 3.0)).W[0], by_hand, atol=1e-5, rtol=1e-5)


def test_every_pair_gets_its_score_and_the_change_is_the_smallest():
    a = random_memory()
    wanted = torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7]])
    new = set_scores(a, a.pairs, wanted)
    torch.testing.assert_close(pair_scores(new, a.pairs), wanted, atol=1e-3, rtol=1e-4)
    other = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    tangent = project(matching(other, a.inputs[0], a.outputs[0]), complement=True).W  # moves no score
    assert ((new.W - a.W)[0] * tangent).sum().abs() < 1e-3  # so the change has nothing of it


@pytest.mark.parametrize("ideal", [None, torch.ones(4, 3)])
def test_projection_share_and_cosine_equal_least_squares_and_sums_of_outer_products(ideal):
    """Single pairs, and all pairs of two sets, which take another way."""
    a = single(ideal=ideal)
    torch.testing.assert_close(project(a).W, slow.projection(a))
    expected = slow.projection(a).square().sum() / a.W.square().sum()
    assert explained(a).item() == pytest.approx(expected.item())
    ideal_memory = slow.ideal_memory(a)
    cosine = (a.W * ideal_memory).sum() / (a.W.norm() * ideal_memory.norm())
    assert alignment(a).item() == pytest.approx(cosine.item())


def test_projections_add_up_and_the_ideal_memory_is_its_own():
    a = random_memory()
    inside, outside = project(a), project(a, complement=True)
    torch.testing.assert_close(inside.W + outside.W, a.W)
    torch.testing.assert_close(pair_scores(outside, a.pairs), torch.zeros(2, 4), atol=1e-3, rtol=0)
    stored = matching(a.outputs.mT @ a.inputs, a.inputs, a.outputs)
    torch.testing.assert_close(project(stored).W, stored.W, atol=1e-3, rtol=1e-3)
    assert explained(stored).tolist() == pytest.approx([1, 1])


def test_the_strength_of_a_memory_is_the_mean_score_of_its_pairs_weighted_by_what_should_be_stored():
    a = single()
    scores = torch.tensor(slow.scores(a))
    by_hand = (scores[0, 0] + 2 * scores[1, 1] + 0.5 * scores[3, 0]) / 3.5  # the negative pair has no weight
    assert strength(a).item() == pytest.approx(by_hand.item())


def test_truncation_keeps_the_largest_singular_values():
    W = random_memory().W
    assert torch.linalg.matrix_rank(truncate(W, 3)).tolist() == [3, 3]
    torch.testing.assert_close(truncate(W, 16), W, atol=1e-4, rtol=1e-4)
    diagonal = torch.diag(torch.tensor([3.0, 2.0, 1.0])).repeat(2, 1, 1)
    assert torch.allclose(truncate(diagonal, 2), torch.diag(torch.tensor([3.0, 2.0, 0.0])), atol=1e-6)
    with pytest.raises(InputError, match="truncate: expected a rank of 1 to 16, got 0"):
        truncate(W, 0)
