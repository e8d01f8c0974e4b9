"""Branches answer "what if": erased associations, and matrices that are given from the start."""

import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.training.branching import branch
from induction_memory.training.run import start
from tests.tiny_runs import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("run") / "whole", quiet=True)


def test_an_erased_association_begins_at_zero_and_is_trained_on(run, tmp_path):
    at = int(run.steps[4])
    reborn = branch(run, at, tmp_path / "reborn", edit={"memory": "W_K2", "erase": "e"}, quiet=True)
    table = im.probes.births(reborn, "W_K2", steps=[at])
    assert table.set_index("association")["score"]["e"] == pytest.approx(0, abs=1e-5)
    assert not torch.equal(reborn.memory("W_K2")[0], reborn.memory("W_K2")[-1])


@pytest.mark.parametrize("kind", ["matrix", "model", "trajectory"])
def test_a_matrix_can_be_given_in_every_form(run, tmp_path, kind):
    source = {"matrix": run.memory("W_O2")[-1], "model": run.model(), "trajectory": run}[kind]
    given = branch(run, 0, tmp_path / "given", grafts={"W_O2": source}, freeze=["W_O2"], quiet=True)
    assert torch.equal(given.memory("W_O2")[-1], run.memory("W_O2")[-1])
    assert not torch.equal(given.memory("W_K2")[-1], run.memory("W_K2")[-1])


def test_a_constructed_model_shares_the_embeddings_and_lends_its_matrix(run, tmp_path):
    built = im.construct(run.task, run.model_config, seed=run.config.train.init_seed)
    assert torch.equal(im.embedding(built, "w_E"), im.embedding(run.model(), "w_E"))
    given = branch(run, 0, tmp_path / "given", grafts={"W_O2": built}, freeze=["W_O2"], quiet=True)
    torch.testing.assert_close(given.memory("W_O2")[-1], im.matrix(built, "W_O2").detach())


def test_momentum_of_a_grafted_matrix_begins_at_zero_and_that_of_the_others_goes_on(run, tmp_path):
    at = int(run.steps[4])
    given = branch(run, at, tmp_path / "given", grafts={"W_O2": torch.zeros(16, 16)}, quiet=True)
    momentum = run.source.optimizer(at)
    for name, after in given.source.optimizer(at).items():
        assert torch.equal(after, 0 * momentum[name] if name.endswith("blocks.1.attn.W_O") else momentum[name]), name


@pytest.mark.parametrize(
    ("grafts", "message"),
    [
        ({"W_O2": torch.zeros(3, 3)}, r"grafts: expected a matrix of shape \(16, 16\) for W_O2, got \(3, 3\)"),
        ({"W_O2": 3}, "grafts: expected a matrix, a model or a trajectory .*, got int for W_O2"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(run, tmp_path, grafts, message):
    with pytest.raises(InputError, match=message):
        branch(run, 0, tmp_path / "no", grafts=grafts, quiet=True)
    assert not (tmp_path / "no").exists()
