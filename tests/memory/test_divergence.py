import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from induction_memory.errors import InputError
from induction_memory.memory import kl

KINDS = ("to model", "from model", "on support")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_kl(p, q):
    return sum(a * (math.log(a) - math.log(b)) if a > 0 else 0.0 for a, b in zip(p, q, strict=True))


@given(st.integers(0, 1000))
def test_both_directions_equal_the_slow_sums(seed):
    logits, table = draw(5, 6, seed=seed), draw(5, 6, seed=seed + 3).softmax(-1)
    q = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits.tolist()]
    to = sum(slow_kl(p.tolist(), r) for p, r in zip(table, q, strict=True)) / 5
    back = sum(slow_kl(r, p.tolist()) for p, r in zip(table, q, strict=True)) / 5
    assert kl(logits, table, "to model").item() == pytest.approx(to)
    assert kl(logits, table, "from model").item() == pytest.approx(back)
    assert kl(logits, table, "on support").item() == pytest.approx(back)
    torch.testing.assert_close(kl(torch.stack([logits] * 2), table, "to model"), torch.tensor([to, to]).double())


def test_divergences_vanish_if_the_logits_are_the_log_table():
    table = draw(4, 4).softmax(-1)
    for kind in KINDS:
        assert kl(table.log(), table, kind).item() == pytest.approx(0, abs=1e-12)


def test_a_zero_in_the_table_makes_the_paper_s_direction_infinite_and_the_others_finite():
    table = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)
    uniform = torch.zeros(3, 3, dtype=torch.float64)
    assert kl(uniform, table, "from model").item() == math.inf
    assert math.isfinite(kl(uniform, table, "from model", smoothing=0.01).item())
    to = (math.log(3) - math.log(2) + math.log(3) + math.log(3) - 1.5 * math.log(2)) / 3
    assert kl(uniform, table, "to model").item() == pytest.approx(to)
    on_support = (0 + 0 + (math.log(1 / 3) * 3 - 2 * math.log(0.25) - math.log(0.5)) / 3) / 3
    assert kl(uniform, table, "on support").item() == pytest.approx(on_support)


def test_a_table_that_is_no_probability_is_refused():
    with pytest.raises(InputError, match="conditional: expected rows of probabilities"):
        kl(torch.zeros(2, 2).double(), torch.ones(2, 2).double(), "to model")
