import numpy as np
import pytest
import torch

from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.interventions.memory_surgery import edited
from induction_memory.model import memories
from induction_memory.trajectory.trajectory import load
from tests.probe_sources import FIXED, TINY, constructed, untrained


def growing(order: list[int]) -> dict[str, torch.Tensor]:
    """Weights into which W_O2 stores one token more at each step."""
    model = untrained(d_model=256, length=16)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    w_U, values = memories.embedding(model, "w_U"), memories.embedding(model, "W_V2 w_E")
    stored = [torch.zeros(256, 256)]
    for k in order:
        stored.append(stored[-1] + 30 * torch.outer(w_U[k], values[k]) / (w_U[k].norm() * values[k].norm()) ** 2)
    weights["blocks.1.attn.W_O"] = torch.stack(stored).mT[:, None]
    return weights


def test_associations_are_born_in_the_order_they_are_stored():
    order = [40, 10, 61, 3]
    born = probes.births(growing(order), "W_O2", task=TINY).set_index("association")
    tokens = TINY.vocabulary
    for step, k in enumerate(order, start=1):
        assert born.loc[tokens[k], "birth"] == step
        assert born.loc[tokens[k], "margin"] > 0
        assert born.loc[tokens[k], "frequency"] == TINY.unigram[k]
    assert born["birth"].notna().sum() == len(order)


def test_trends_see_an_order_by_frequency():
    by_frequency = np.argsort(-TINY.unigram)[:12].tolist()
    trend = probes.trends(probes.births(growing(by_frequency), "W_O2", task=TINY)).set_index("of")
    assert trend.loc["birth", "rho"] < -0.4
    assert trend.loc["birth", "p_value"] < 0.01
    assert trend.loc["birth", "born"] == 12


def test_the_score_matrix_is_labelled_and_shows_the_diagonal():
    matrix = probes.score_matrix(constructed(), "W_O2", task=FIXED)
    assert (matrix.to_numpy().argmax(1) == np.arange(65)).all()
    assert matrix.index.tolist() == list(FIXED.vocabulary)
    positions = probes.score_matrix(constructed(), "W_K1[4:12]", task=FIXED)
    assert positions.index.tolist() == list(range(5, 12))  # keys, counted from 1
    assert positions.columns.tolist() == list(range(6, 13))  # queries
    assert positions[8].idxmax() == 7


def test_heads_are_chosen_by_name():
    model = untrained(d_model=24, length=16, n_heads=2, identity_queries=False)
    matrix = probes.score_matrix(model, "W_K2", head="L1H2>L2H1")
    w_E, Phi_1 = memories.embedding(model, "w_E"), memories.matrix(model, "Phi_1")
    expected = w_E @ memories.matrix(model, "W_K2")[0] @ (w_E @ Phi_1[1].T).T
    np.testing.assert_allclose(matrix.to_numpy().T, expected.numpy(), rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="head: expected one of L1H1>L2H1, "):
        probes.score_matrix(model, "W_K2")


@pytest.mark.parametrize(("memory", "pair"), [("W_K1", (4, 5)), ("W_K2", ("a", "v")), ("W_O2", ("a", "v"))])
def test_the_pair_that_is_erased_is_the_cell_of_the_matrix_with_its_names(memory, pair):
    run = load("induction-small")
    model = run.model()
    before = probes.score_matrix(model, memory, task=run.task)
    with edited(model, run.task, memory=memory, erase=f"{pair[0]}->{pair[1]}"):
        after = probes.score_matrix(model, memory, task=run.task)
    assert abs(before.loc[pair]) > 0.5
    assert abs(after.loc[pair]) < 1e-3
    assert abs(after.loc[pair[::-1]] - before.loc[pair[::-1]]) < 0.1 * abs(before.loc[pair])
