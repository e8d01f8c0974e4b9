"""Branches answer "what if": erased associations, and matrices that are given from the start."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.memory.edits import alignment
from induction_memory.model.associations import associate
from induction_memory.training.branching import branch
from induction_memory.training.run import start
from tests.tiny_runs import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("run") / "whole", progress=False)


def test_an_erased_association_begins_at_zero_and_is_trained_on(run, tmp_path):
    at = int(run.steps[4])
    reborn = branch(run, at, tmp_path / "reborn", edit={"memory": "W_K2", "erase": "e"}, progress=False)
    table = im.probes.births(reborn, "W_K2", step=[at])
    assert table.set_index("association")["score"]["e"] == pytest.approx(0, abs=1e-5)
    assert not torch.equal(reborn.memory("W_K2")[0], reborn.memory("W_K2")[-1])


@pytest.mark.parametrize("kind", ["matrix", "model", "trajectory"])
def test_a_matrix_can_be_given_in_every_form(run, tmp_path, kind):
    source = {"matrix": run.memory("W_O2")[-1], "model": run.model(), "trajectory": run}[kind]
    given = branch(run, 0, tmp_path / "given", grafts={"W_O2": source}, freeze=["W_O2"], progress=False)
    assert torch.equal(given.memory("W_O2")[-1], run.memory("W_O2")[-1])
    assert not torch.equal(given.memory("W_K2")[-1], run.memory("W_K2")[-1])


def test_a_constructed_model_shares_the_embeddings_and_lends_its_matrix(run, tmp_path):
    built = im.construct(run.task, run.model_config, seed=run.config.train.init_seed)
    assert torch.equal(im.model.embedding(built, "w_E"), im.model.embedding(run.model(), "w_E"))
    given = branch(run, 0, tmp_path / "given", grafts={"W_O2": built}, freeze=["W_O2"], progress=False)
    torch.testing.assert_close(given.memory("W_O2")[-1], im.model.matrix(built, "W_O2").detach())


@pytest.mark.parametrize("kind", ["run", "plain folder", "file"])
def test_a_graft_written_as_text_takes_a_run_a_plain_folder_or_a_file(run, tmp_path, kind):
    W = run.memory("W_O2")[-1]
    np.save(tmp_path / "W.npy", W.numpy())
    (tmp_path / "plain").mkdir()
    save_file(dict(run.state(int(run.steps[-1]))), tmp_path / "plain" / "weights-7.safetensors")
    where = {"run": run.path, "plain folder": tmp_path / "plain", "file": tmp_path / "W.npy"}[kind]
    given = branch(run, 0, tmp_path / "given", grafts=[f"W_O2={where}"], freeze=["W_O2"], progress=False)
    assert torch.equal(given.memory("W_O2")[-1], W)


def test_a_constructed_graft_stores_the_pairs_of_the_run_itself(run, tmp_path):
    given = branch(run, 0, tmp_path / "given", grafts=["W_O2=constructed"], freeze=["W_O2"], steps=1, progress=False)
    other = im.construct(run.task, run.model_config, seed=9)
    foreign = branch(run, 0, tmp_path / "foreign", grafts={"W_O2": other}, freeze=["W_O2"], steps=1, progress=False)
    stored = [associate(one.state(1), "W_O2", task=run.task, bare=True) for one in (given, foreign)]
    own, others = (float(alignment(a)) for a in stored)
    assert own == pytest.approx(1, abs=1e-5)
    assert others < 0.5


def test_momentum_of_a_grafted_matrix_begins_at_zero_and_that_of_the_others_goes_on(run, tmp_path):
    at = int(run.steps[4])
    given = branch(run, at, tmp_path / "given", grafts={"W_O2": torch.zeros(16, 16)}, progress=False)
    momentum = run.stored_optimizer(at)
    for name, after in given.stored_optimizer(at).items():
        assert torch.equal(after, 0 * momentum[name] if name.endswith("blocks.1.attn.W_O") else momentum[name]), name


@pytest.mark.parametrize(
    ("grafts", "message"),
    [
        ({"W_O2": torch.zeros(3, 3)}, r"grafts: expected a matrix of shape \(16, 16\) for W_O2, got \(3, 3\)"),
        (["W_O2=nowhere"], "run: expected the folder of a trajectory"),
        (["W_O2=nowhere.npy"], "grafts: expected a matrix that can be read, got 'nowhere.npy'"),
        (["W_Q9=constructed"], "grafts: expected names out of"),
        (["W_V2=constructed"], "grafts: expected one of W_K1, W_K2, W_O2, W_F, got 'W_V2'"),
        (["W_O2"], "train.grafts: expected NAME=RUN@STEP"),
        ({"W_O2": 3}, "grafts: expected a matrix, a model or a trajectory .*, got int for W_O2"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(run, tmp_path, grafts, message):
    with pytest.raises(InputError, match=message):
        branch(run, 0, tmp_path / "no", grafts=grafts, progress=False)
    assert not (tmp_path / "no").exists()


def test_a_branch_from_step_0_is_resumed_and_a_run_is_not_taken_for_one(run, tmp_path):
    rules = {"freeze": ["W_O2"], "progress": False}
    first = branch(run, 0, tmp_path / "held", **rules)
    assert torch.equal(
        branch(run, 0, tmp_path / "held", resume="or start", **rules).memory("W_K2"), first.memory("W_K2")
    )
    with pytest.raises(InputError, match="expected a branch from step 0, got a run from step 0"):
        branch(run, 0, run.path, resume=True, **rules)
    with pytest.raises(InputError, match="expected a run from its beginning, got a branch from step 0"):
        start(tiny(), tmp_path / "held", resume=True)


def test_a_branch_is_resumed_with_its_own_edit_and_parent_alone(tmp_path):
    task, model = im.BigramTask(length=12), im.ModelConfig(d_model=16, n_ctx=12)
    how = {"steps": 4, "batch_size": 4, "progress": False}
    run, other = (im.train(task, model, out=tmp_path / str(s), init_seed=s, **how) for s in (0, 7))
    edit, out = {"memory": "W_O2", "erase": "e"}, tmp_path / "branch"
    im.branch(run, at=2, steps=4, out=out, edit=edit, progress=False)
    with pytest.raises(InputError, match=r"edit: expected .*'erase': 'e'.*, as in the branch to resume"):
        im.branch(run, at=2, steps=4, out=out, edit=edit | {"erase": "a"}, resume=True, progress=False)
    with pytest.raises(InputError, match="source: expected the run of which"):
        im.branch(other, at=2, steps=4, out=out, edit=edit, resume=True, progress=False)
    assert im.branch(run, at=2, steps=4, out=out, edit=edit, resume=True, progress=False).steps.tolist() == [2, 3, 4]
