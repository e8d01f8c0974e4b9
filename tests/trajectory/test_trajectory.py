"""Trajectories on the disk: what comes back is what was there, step by step, matrix by matrix."""

import json
import stat
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import induction_memory as im
from induction_memory import load, thin, verify
from induction_memory.errors import DamagedError, InputError
from induction_memory.memory.edits import pair_scores
from induction_memory.model.associations import associate
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import embedding, matrix
from induction_memory.task.sampler import sample, step_rng
from induction_memory.training.branching import branch
from induction_memory.training.loop import train
from induction_memory.training.run import resume, start
from induction_memory.trajectory import search
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.writer import Writer
from tests.tiny_runs import MODEL, TASK, tiny

STEPS = [0, 1, 2, 3, 4, 8, 12]


@pytest.fixture(scope="module")
def config():
    return tiny()


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    return start(config, tmp_path_factory.mktemp("runs") / "whole", progress=False, command="train tiny")


@pytest.fixture(scope="module")
def states(config):
    """The states of the same run, kept in memory."""
    model = build(config.model, config.train.init_seed)
    return {s.step: s.parameters() for s in train(config.task, model, config.train)}


@pytest.fixture
def unfinished(config, tmp_path, monkeypatch):
    """A folder whose training stopped before step 10."""

    def stop(self, step, *rest):
        if step == 10:
            raise KeyboardInterrupt
        record(self, step, *rest)

    record = Writer.record
    monkeypatch.setattr(Writer, "record", stop)
    with pytest.raises(KeyboardInterrupt):
        start(config, tmp_path / "unfinished", progress=False)
    monkeypatch.undo()
    return tmp_path / "unfinished"


def test_what_was_trained_is_what_is_read(run, config, states):
    assert run.steps.tolist() == STEPS
    assert run.config == config
    assert run.name == "whole"
    assert run.finished
    for step in STEPS:
        state = run.state(step)
        assert state.keys() == states[step].keys()
        assert all(torch.equal(state[name], states[step][name]) for name in state)
    for name in states[0]:
        stacked = torch.stack([states[step][name] for step in STEPS])
        assert torch.equal(run.stack(name), stacked)
        assert torch.equal(run.stack(name, [4, 12]), stacked[[4, 6]])
    assert torch.equal(run.stack("W_O2"), run.stack("blocks.1.attn.W_O"))
    assert repr(run) == "Trajectory('whole': 7 steps from 0 to 12)"


def test_a_model_of_a_step_predicts_as_the_model_did_then(run, states):
    batch = sample(TASK, 4, step_rng(9, 0))
    model = build(MODEL, 0)
    for name, value in states[8].items():
        model.get_parameter(name).data.copy_(value)
    assert torch.equal(run.model(8)(batch.tokens), model(batch.tokens))
    assert torch.equal(run.model(9, nearest=True)(batch.tokens), model(batch.tokens))
    assert run.model(8).trainable == model.trainable


def test_memories_and_embeddings_are_those_of_the_models(run):
    for name in ("W_K1", "W_K2", "W_O2", "W_F", "Phi_1", "W_V2"):
        expected = torch.stack([matrix(run.model(step), name) for step in STEPS])
        torch.testing.assert_close(run.memory(name), expected)
        torch.testing.assert_close(run.memory(name, [2, 8]), expected[[2, 5]])
    for name in ("w_E", "p", "w_U", "Phi_1 w_E"):
        torch.testing.assert_close(run.embedding(name), embedding(run.model(0), name))


def test_a_run_is_a_mapping_from_steps_to_models(run, states):
    assert list(run) == STEPS
    assert len(run) == len(STEPS)
    assert STEPS[2] in run
    assert 5 not in run
    assert "last" not in run
    models = [(step, model.get_parameter("blocks.0.attn.W_K")) for step, model in run.items()]
    assert all(torch.equal(value, states[step]["blocks.0.attn.W_K"]) for step, value in models)
    for step in (STEPS[2], -1):
        assert torch.equal(run[step].W_K[0], run.model(12 if step < 0 else step).W_K[0])
    with pytest.raises(InputError, match="next to it 4 and 8"):
        run[5]
    for wrong in (slice(0, 4), "last", [0, 2]):
        with pytest.raises(InputError, match="step: expected a whole number"):
            run[wrong]


def test_metrics_are_a_table_with_a_row_a_step(run):
    table = run.metrics
    assert table["step"].tolist() == list(range(13))
    assert table.loc[table["checkpoint"], "step"].tolist() == STEPS
    assert table["loss_global"].notna().tolist() == [step % 4 == 0 for step in range(13)]
    assert table.dtypes["gradient_norm_W_K1"] == np.float64


def test_a_step_that_is_not_stored_is_refused_with_its_neighbours(run):
    message = r"^step: expected one of the 7 stored steps \(0 to 12; next to it 4 and 8\), got 6\nwhat to do: "
    with pytest.raises(InputError, match=message):
        run.model(6)
    with pytest.raises(InputError, match=r"next to it 12\), got 500\nwhat to do: "):
        run.state(500)
    with pytest.raises(InputError, match=r"^parameter: expected one of W_E, .*, got 'W_X'$"):
        run.stack("W_X")
    assert torch.equal(run.state(6, nearest=True)["blocks.0.attn.W_K"], run.state(4)["blocks.0.attn.W_K"])


def test_files_are_plain_safetensors_that_a_group_can_read(run):
    with safe_open(run.path / "trained.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("blocks.1.attn.W_O"), run.stack("W_O2"))
        assert torch.equal(file.get_slice("blocks.1.attn.W_O")[3], run.state(3)["blocks.1.attn.W_O"])
    names = {"manifest.json", "metrics.jsonl", "frozen.safetensors", "trained.safetensors", "optimizer.safetensors"}
    assert {path.name for path in run.path.iterdir()} == names
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.path.iterdir()} == {0o644}
    manifest = json.loads((run.path / "manifest.json").read_text())
    assert manifest["command"] == "train tiny"
    assert manifest["versions"]["torch"] == version("torch")  # a build's own suffix may be missing in it
    assert set(manifest["pieces"]) == names - {"manifest.json"}
    assert all(json.loads(line)["crc32"] for line in (run.path / "metrics.jsonl").read_text().splitlines())
    assert verify(run.path) == []


def test_a_run_that_is_still_training_can_be_read(unfinished, states):
    growing = load(unfinished)
    assert not growing.finished
    assert growing.steps.tolist() == STEPS[:-1]
    assert growing.metrics["step"].tolist() == list(range(10))
    assert torch.equal(growing.stack("W_K1")[5], states[8]["blocks.0.attn.W_K"])
    assert torch.equal(growing.memory("W_K1", [8])[0], matrix(growing.model(8), "W_K1"))
    assert growing.optimizer_state(8).keys() == growing.optimizer_state(0).keys()
    assert verify(unfinished) == []
    before = growing.fingerprint
    assert resume(unfinished, progress=False).fingerprint != before
    assert torch.equal(growing.stack("W_K1", [8])[0], states[8]["blocks.0.attn.W_K"])  # it finished meanwhile
    assert growing.optimizer_state(8).keys() == growing.optimizer_state(0).keys()
    assert growing.fingerprint != before


def test_a_run_of_no_update_is_its_initialisation(tmp_path):
    run = start(tiny(steps=0), tmp_path / "run", progress=False)
    assert run.steps.tolist() == [0]
    assert torch.equal(run.stack("W_K1")[0], build(MODEL, 0).get_parameter("blocks.0.attn.W_K").detach())
    assert len(run.metrics) == 1


def test_fingerprints_follow_the_content(run, config, tmp_path):
    again = start(config, tmp_path / "again", progress=False)
    other = start(tiny(learning_rate=0.1), tmp_path / "other", progress=False)
    assert again.fingerprint == run.fingerprint == load(run.path).fingerprint
    assert other.fingerprint != run.fingerprint


def test_shipped_trajectories_are_found_by_name_and_unknown_ones_are_not(run, monkeypatch):
    monkeypatch.setattr(search, "SHIPPED", run.path.parent)
    assert im.load("whole").path == run.path
    with pytest.raises(InputError, match=r"^run: expected the folder .* or one of .*whole.*, got 'half' \(the shipped"):
        im.load("half")
    with pytest.raises(InputError, match=r"expected a trajectory \(a folder with manifest\.json\), got none there$"):
        im.load(run.path.parent)


def test_a_branch_without_changes_is_the_run_itself(run, tmp_path):
    same = branch(run, 4, tmp_path / "same", progress=False)
    assert same.steps.tolist() == [4, 8, 12]
    assert same.parent == {"name": "whole", "fingerprint": run.fingerprint, "step": 4, "optimizer": "stored"}
    for name in run.state(0):
        assert torch.equal(same.stack(name), run.stack(name, [4, 8, 12]))
    assert same.metrics.equals(run.metrics[4:].reset_index(drop=True))
    assert all(torch.equal(v, run.optimizer_state(12)[n]) for n, v in same.optimizer_state(12).items())


def test_a_branch_may_begin_with_an_edited_memory(run, tmp_path):
    edit = {"memory": "W_K2", "erase": "e"}
    reborn = branch(run, 8, tmp_path / "reborn", edit=edit, progress=False)
    assert reborn.parent is not None
    assert reborn.parent["edit"] == edit
    before, after = (associate(source.state(8), "W_K2", task=TASK, bare=True) for source in (run, reborn))
    pair = torch.tensor([before.number("e", "erase")])
    assert pair_scores(before, pair).abs().min() > 0.01
    assert pair_scores(after, pair).abs().max() < 1e-5
    others = torch.tensor([before.number("a", "erase")])
    assert (pair_scores(after, others) - pair_scores(before, others)).abs().max() < pair_scores(
        before, pair
    ).abs().max()
    for name, value in reborn.state(8).items():
        assert torch.equal(value, run.state(8)[name]) == (name != "blocks.1.attn.W_K")
    momentum = reborn.optimizer_state(8)
    assert not momentum["momentum/blocks.1.attn.W_K"].any()
    assert torch.equal(momentum["momentum/blocks.0.attn.W_K"], run.optimizer_state(8)["momentum/blocks.0.attn.W_K"])
    assert not torch.equal(reborn.stack("W_K2", [12]), run.stack("W_K2", [12]))
    for wrong in (
        {"memory": "W_K2"},
        {"erase": "e"},
        {"memory": "W_K9", "erase": "e"},
        {"memory": "W_K2", "erase": "€"},
    ):
        with pytest.raises(InputError):
            branch(run, 8, tmp_path / "wrong", edit=wrong, progress=False)
        assert not (tmp_path / "wrong").exists()


def test_a_branch_holds_its_own_rules_from_its_step_on(run, tmp_path):
    held = branch(run, 4, tmp_path / "held", freeze=["W_K1"], clamps=["induction"], steps=14, progress=False)
    assert held.config.train.freeze == ("W_K1: 4..",)
    assert held.config.train.clamps == ("induction@4",)
    assert held.steps.tolist() == [4, 8, 12, 14]
    assert torch.equal(held.stack("W_K1"), run.stack("W_K1", [4] * 4))
    grafted = branch(run, 3, tmp_path / "grafted", grafts=[f"W_O2={run.path}@12", f"W_V2={run.path}@0"], progress=False)
    assert torch.equal(grafted.stack("W_O2", [3])[0], run.state(12)["blocks.1.attn.W_O"])
    assert torch.equal(grafted.stack("W_K1", [3])[0], run.state(3)["blocks.0.attn.W_K"])
    assert not torch.equal(grafted.stack("W_O2", [4])[0], grafted.stack("W_O2", [3])[0])
    assert verify(grafted.path) == []
    other = branch(run, 4, tmp_path / "other", settings=["train.learning_rate=0.05"], progress=False)
    assert other.config.train.learning_rate == 0.05
    with pytest.raises(InputError, match=r"^train\.freeze: expected names out of"):
        branch(run, 4, tmp_path / "bad", freeze=["W_X"])
    with pytest.raises(InputError, match=r"^model: expected the run's own architecture, got another$"):
        branch(run, 4, tmp_path / "bad", settings=["model.scale_scores=false"])
    with pytest.raises(InputError, match=r"^train\.steps: expected at least 8"):
        branch(run, 8, tmp_path / "bad", steps=5)
    assert not (tmp_path / "bad").exists()


def test_without_kept_optimiser_states_a_branch_starts_from_zero_and_says_so(tmp_path):
    light = start(tiny(keep_optimizer=False), tmp_path / "light", progress=False)
    assert light.optimizer_state(12)["momentum/blocks.0.attn.W_K"].any()
    with pytest.raises(InputError, match=r"expected the optimiser's state of step 4, got none"):
        light.optimizer_state(4)
    off = branch(light, 4, tmp_path / "off", progress=False)
    assert off.parent is not None
    assert off.parent["optimizer"] == "zero"


def test_thinned_to_some_steps_it_keeps_its_metrics(run, tmp_path):
    small = thin(run, tmp_path / "small", [0, 8])
    assert small.steps.tolist() == [0, 8]
    assert small.metrics.drop(columns="checkpoint").equals(run.metrics.drop(columns="checkpoint"))
    assert small.metrics.loc[small.metrics["checkpoint"], "step"].tolist() == [0, 8]
    assert small.config == run.config
    assert all(torch.equal(value, run.state(8)[name]) for name, value in small.state(8).items())
    assert not (small.path / "optimizer.safetensors").exists()
    assert verify(small.path) == []
    whole = thin(run, tmp_path / "all", keep_optimizer=True)
    assert (whole.path / "trained.safetensors").read_bytes() == (run.path / "trained.safetensors").read_bytes()
    assert (whole.path / "optimizer.safetensors").read_bytes() == (run.path / "optimizer.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"^out: expected a new or an empty folder"):
        thin(run, tmp_path / "small")


def test_an_exported_step_comes_back(run, tmp_path):
    folder = run.export(8, tmp_path / "exported")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    back = load(folder)
    assert back.steps.tolist() == [8]
    assert back.config == run.config
    tokens = sample(TASK, 2, step_rng(9, 0)).tokens
    assert torch.equal(back.model(8)(tokens), run.model(8)(tokens))
    assert torch.equal(back.memory("W_K2"), run.memory("W_K2", [8]))
    damaged = bytearray((folder / "model.safetensors").read_bytes())
    damaged[-7] ^= 4
    (folder / "model.safetensors").write_bytes(damaged)
    with pytest.raises(DamagedError, match=r"model\.safetensors"):
        load(folder).model(8)


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_plain_state_dicts_of_others_are_a_trajectory_too(ending, run, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    for step in (0, 8):
        state = {name: value.contiguous() for name, value in run.model(step).state_dict().items()}
        path = folder / f"run2-step{step}.{ending}"
        save_file(state, path) if ending == "safetensors" else torch.save(state, path)
    theirs = load(folder, model=MODEL, task=TASK)
    assert theirs.steps.tolist() == [0, 8]
    for name in ("W_K1", "Phi_1", "W_O2"):
        torch.testing.assert_close(theirs.memory(name), run.memory(name, [0, 8]))
    tokens = sample(TASK, 2, step_rng(9, 0)).tokens
    assert torch.equal(theirs.model(8)(tokens), run.model(8)(tokens))
    assert theirs.metrics.empty
    assert theirs.config.task == TASK
    converted = thin(theirs, tmp_path / "converted")
    assert torch.equal(converted.stack("W_O2"), theirs.stack("W_O2"))
    assert verify(converted.path) == []
    untold = load(folder, model=MODEL)
    assert untold.model_config.d_model == 16
    with pytest.raises(InputError, match=r"expected a trajectory with a task, got theirs, imported without one$"):
        _ = untold.config
    with pytest.raises(InputError, match=r"expected embed\.W_E of shape \(65, 32\) .*, got \(65, 16\)$"):
        load(folder, model=MODEL.replace(d_model=32)).state(0)


def test_a_pickle_that_holds_more_than_tensors_is_not_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"embed.W_E": Trap()}, tmp_path / "model-0.pt")
    with pytest.raises(InputError, match=r"model-0\.pt: expected plain tensors"):
        load(tmp_path, model=MODEL).state(0)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "model",
    [
        ModelConfig.full(d_model=16, n_ctx=16, tied_output=True),
        ModelConfig.full(d_model=16, n_ctx=16, n_heads=2, layer_norm=True),
        ModelConfig(d_model=16, n_ctx=16, tied_output=True, feed_forward="none"),
    ],
    ids=["tied", "heads and LayerNorm", "tied and frozen"],
)
def test_other_architectures_come_back_too(model, tmp_path):
    run = start(tiny(model, steps=3, optimizer="adamw", learning_rate=0.01), tmp_path / "run", progress=False)
    live = build(model, 0)
    for snapshot in train(TASK, live, run.config.train):
        state = run.state(snapshot.step)
        assert state.keys() == snapshot.parameters().keys()
        assert all(torch.equal(value, state[name]) for name, value in snapshot.parameters().items())
    tokens = sample(TASK, 2, step_rng(9, 0)).tokens
    again = run.model(3)
    assert torch.equal(again(tokens), live(tokens))
    expected = matrix(again, "W_K2")
    torch.testing.assert_close(run.memory("W_K2")[-1], expected)
    torch.testing.assert_close(run.memory("W_K2"), torch.stack([matrix(run.model(s), "W_K2") for s in range(4)]))
    if model.tied_output:
        assert torch.equal(run.stack("W_U"), run.stack("W_E").mT)
        assert again.unembed.W_U.data_ptr() == again.embed.W_E.data_ptr()


def test_a_newer_format_is_refused_with_its_version(run, tmp_path):
    newer = thin(run, tmp_path / "newer", [0])
    path = newer.path / "manifest.json"
    path.write_text(path.read_text().replace('"version": 4', '"version": 5'))
    with pytest.raises(InputError, match=r"manifest\.json: expected format version 4, got 5: another"):
        load(newer.path)
    assert Manifest.read(run.path).state == "finished"


anything: Any = im  # as a user has it who reads no annotations


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda run: anything.load(5), r"^run: expected the folder or the name of a trajectory, got 5$"),
        (
            lambda run: anything.load(run.path, model="full"),
            r"^model: expected a ModelConfig .*, got 'full'$",
        ),
        (lambda run: anything.load(run.path, task=3), r"^task: expected a task, got 3$"),
        (lambda run: run.model(step="x"), r"^step: expected a whole number, got 'x'$"),
        (lambda run: run.model(step=None, nearest=True), r"^step: expected a whole number, got None$"),
        (lambda run: run.state(float("nan"), nearest=True), r"^step: expected a whole number, got nan$"),
        (lambda run: run.memory(5), r"^memory: expected .*, got 5$"),
        (lambda run: run.memory("W_K1", step=5), r"^step: expected one of the "),
        (lambda run: run.stack("W_K1", step=[]), r"^step: expected at least one step, got none$"),
        (lambda run: run.embedding(5), r"^embedding: expected .*, got 5$"),
        (lambda run: run.export(4, 7), r"^out: expected a folder, got 7$"),
        (
            lambda run: anything.probes.recall("run"),
            r"^run: expected the folder of a trajectory or one of .*, got 'run' \(the shipped ones are in ",
        ),
        (lambda run: anything.probes.table(run, 5), r"^probes: expected names of probes or of families.*, got 5$"),
        (lambda run: anything.probes.table(run, "loss", batch="x"), r"^batch: expected a Batch, .*, got a str$"),
        (lambda run: anything.probes.table(run, "loss", task="x"), r"^task: expected a task, got 'x'$"),
    ],
)
def test_a_value_of_a_wrong_type_is_one_line(run, mistake, message):
    with pytest.raises(InputError, match=message):
        mistake(run)
