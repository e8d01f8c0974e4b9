"""The weights before training: stored, computed again from configuration and seed, or unknown; never guessed."""

import logging
from dataclasses import replace

import pytest
import torch

import induction_memory as im
from induction_memory import load, thin
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.source.sources import select
from induction_memory.training.branching import branch
from induction_memory.training.run import start
from induction_memory.trajectory.manifest import Manifest
from tests.tiny_runs import MODEL, TASK, tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("runs") / "run", progress=False)


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_configuration_and_seed_give_step_0_of_a_shipped_run_bit_for_bit():
    shipped = im.load("induction-alone")
    model = build(shipped.model_config, shipped.config.train.init_seed)
    rebuilt = {name: value.detach() for name, value in model.named_parameters()}
    assert same(rebuilt, shipped.state(0))
    assert same(shipped.initial(), shipped.state(0))


def test_a_run_that_stores_only_late_steps_has_moved_since_its_initial_weights():
    shipped = im.load("vanilla-random")
    assert shipped.steps[0] == 1500
    initial = shipped.initial()
    assert initial is not None
    seed = shipped.config.train.init_seed
    assert same(initial, {n: p.detach() for n, p in build(shipped.model_config, seed).named_parameters()})
    distances = im.probes.table(shipped, "distance_W_K1")["value"]
    assert (distances > 0.1).all()


def test_initial_weights_come_back_from_whatever_was_kept(run, tmp_path):
    expected = run.state(0)
    assert same(run.initial(), expected)
    assert same(thin(run, tmp_path / "late", [8, 12]).initial(), expected)
    assert same(load(run.export(8, tmp_path / "exported")).initial(), expected)
    off = branch(run, 4, tmp_path / "branch", progress=False)
    assert same(off.initial(), expected)
    assert same(thin(off, tmp_path / "thinned branch", [12]).initial(), expected)
    again = branch(off, 8, tmp_path / "branch of a branch", settings=["model.trained=W_K1"], progress=False)
    assert same(again.initial(), expected)


def test_a_tied_output_is_tied_in_the_initial_weights(tmp_path):
    tied = start(
        tiny(ModelConfig.full(d_model=16, n_ctx=16, tied_output=True), steps=2), tmp_path / "run", progress=False
    )
    assert same(thin(tied, tmp_path / "last", [2]).initial(), tied.state(0))


def test_what_is_imported_or_was_grafted_and_thinned_is_unknown(run, tmp_path):
    (tmp_path / "theirs").mkdir()
    for step in (0, 8):
        torch.save(run.model(step).state_dict(), tmp_path / "theirs" / f"model-{step}.pt")
    theirs = load(tmp_path / "theirs", model=MODEL, task=TASK)
    assert theirs.initial() is None
    converted = thin(theirs, tmp_path / "converted")
    assert converted.initial() is None
    assert branch(converted, 8, tmp_path / "branch", steps=9, progress=False).initial() is None
    assert select(converted).initial() is None
    table = im.probes.table(converted, ["distance_W_K1"])
    assert table.empty
    assert "initialisation" in table.attrs["skipped"]["distance_W_K1"]

    stacked = {name: run.stack(name, [8, 12]) for name in run.model_config.parameters.values()}
    for weights in (stacked, run.state(12), run.model(12)):
        table = im.probes.table(weights, ["distance_W_K1"])
        assert table.empty
        assert "initialisation" in table.attrs["skipped"]["distance_W_K1"]

    grafted = start(tiny(grafts=(f"W_O2={run.path}@12",), steps=4), tmp_path / "grafted", progress=False)
    initial = grafted.initial()
    assert initial is not None
    assert torch.equal(initial["blocks.1.attn.W_O"], run.state(12)["blocks.1.attn.W_O"])
    late = thin(grafted, tmp_path / "late", [4])
    assert late.initial() is None


def test_weights_that_another_generator_would_draw_are_unknown_and_said_once(run, tmp_path, caplog):
    late = thin(run, tmp_path / "late", [12])
    replace(Manifest.read(late.path), initial="0" * 64).write(late.path)
    with caplog.at_level(logging.WARNING, logger="induction_memory"):
        assert load(late.path).initial() is None
    assert "cannot be computed again" in caplog.text
