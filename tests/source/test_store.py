"""Results kept beside a source: right values or none, whatever happens to the files; and the loop that keeps them."""

import random
import shutil
import stat
from dataclasses import replace

import pandas as pd
import pytest
import torch

from induction_memory import load, measure, probes
from induction_memory.errors import StorageError
from induction_memory.interventions import ablations
from induction_memory.interventions.ablations import ablate
from induction_memory.source import measuring, store
from induction_memory.task.batch import Batch
from induction_memory.task.sampler import step_rng
from induction_memory.trajectory.lock import CACHE
from tests.tiny_runs import tiny

NAMES = ["loss", "W_K1", "accuracy"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from induction_memory.training.run import start

    return start(tiny(), tmp_path_factory.mktemp("runs") / "run", progress=False).path


@pytest.fixture
def run(folder, tmp_path):
    """A run of its own, with results kept."""
    shutil.copytree(folder, tmp_path / "run")
    run = load(tmp_path / "run")
    probes.table(run, NAMES)
    return run


@pytest.fixture
def measured(monkeypatch):
    """The steps that are measured and not read from the disk."""
    steps, value = [], probes.tables.Activations

    def counting(at, facts):
        steps.append(at.step)
        return value(at, facts)

    monkeypatch.setattr(probes.tables, "Activations", counting)
    return steps


def entries(run) -> list:
    return sorted((run.path / CACHE).iterdir())


@pytest.mark.parametrize("flips", [40, pytest.param(400, marks=pytest.mark.hard)])
def test_a_flipped_or_cut_entry_is_never_read(run, flips, knocks):
    right = probes.table(run, NAMES)
    chance = random.Random(0)
    for flip in range(flips):
        path = chance.choice(entries(run))
        whole = path.read_bytes()
        if flip % 5:
            damaged = bytearray(whole)
            damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
            knocks["byte flips"] += 1
        else:
            damaged = whole[: chance.randrange(len(whole))]
            knocks["truncations"] += 1
        path.write_bytes(damaged)
        pd.testing.assert_frame_equal(probes.table(run, NAMES), right)
        assert path.read_bytes() == whole  # measured again, and kept


def test_an_entry_under_another_s_name_is_never_read(run, knocks):
    right = probes.table(run, NAMES)
    first, second, *_ = entries(run)
    shutil.copy(first, second)
    knocks["swapped files"] += 1
    pd.testing.assert_frame_equal(probes.table(run, NAMES), right)


def test_a_group_can_read_the_entries(run):
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries(run)} == {0o644}


def test_a_folder_that_cannot_be_written_costs_only_time(run, monkeypatch):
    right = probes.table(run, NAMES)
    shutil.rmtree(run.path / CACHE)

    def refuse(*_):
        raise StorageError("no space left")

    monkeypatch.setattr(store, "write_file", refuse)
    pd.testing.assert_frame_equal(probes.table(run, NAMES), right)
    assert not (run.path / CACHE).exists()


def test_what_is_kept_is_not_measured_again(run, measured):
    probes.table(run, NAMES)
    assert measured == []
    probes.table(run, ["loss", "loss_in_context"])
    assert measured == run.steps.tolist()


def test_the_key_tells_batches_apart_by_tokens_groups_and_main_group(run, measured):
    batch = run.task.sample(4, run_rng())
    plain = Batch(batch.tokens, batch.targets, batch.counted, dict(batch.groups), batch.main)
    other = next(name for name in plain.groups if name != plain.main)
    variants = [plain, replace(plain, main=other), plain[:2]]
    variants.append(
        replace(plain, groups={f"{name}s": mask for name, mask in plain.groups.items()}, main=f"{plain.main}s")
    )
    renamed = {f"{name}s" if name == other else name: mask for name, mask in plain.groups.items()}
    variants.append(replace(plain, groups=renamed))
    for one in variants:
        measured.clear()
        probes.table(run, ["loss"], step=0, batch=one)
        assert measured == [0]
    measured.clear()
    probes.table(run, ["loss"], step=0, batch=plain)
    assert measured == []


def run_rng():
    return step_rng(9, 0)


def test_a_user_s_own_function_is_never_kept(run, measured):
    def entropy(at):
        return at.log_q.exp().mean()

    own = probes.registry.Probe("own", "", entropy, "activations")
    probes.registry.registered["own"] = own
    try:
        for _ in range(2):
            measured.clear()
            probes.table(run, ["own"], step=0)
            assert measured == [0]
    finally:
        del probes.registry.registered["own"]
    assert store.key_of({"kind": entropy}) is None


def test_settings_are_told_apart_by_content():
    assert store.key_of({"a": torch.ones(2)}) != store.key_of({"a": torch.zeros(2)})
    assert store.key_of({"a": torch.ones(2)}) == store.key_of({"a": torch.ones(2)})


def test_ablations_of_a_run_are_kept_too(run, monkeypatch):
    whole = ablate(run, heads="all", step="all")
    monkeypatch.setattr("induction_memory.interventions.ablations.Replacements", None)
    pd.testing.assert_frame_equal(ablate(run, heads="all", step="all"), whole)


def test_ablations_by_a_user_s_registered_kind_are_measured_each_time(run, monkeypatch):
    monkeypatch.setattr(ablations, "_KINDS", dict(ablations._KINDS))
    for factor in (0.0, 2.0):
        ablations.register("scaled", about="")(lambda recorded, site, factor=factor: recorded.at(site) * factor)
        table = ablate(run, heads="all", kind="scaled", step=12)
        expected = ablate(run.model(12), table_batch(run), heads="all", kind="scaled")
        assert table["kl"].tolist() == pytest.approx(expected["kl"].tolist(), abs=1e-6)


def table_batch(run):
    return run.task.sample(64, step_rng(run.eval_seed, 0))


def test_an_interruption_keeps_the_steps_that_are_done(run, monkeypatch, capsys):
    shutil.rmtree(run.path / CACHE)
    seen, value = [], probes.tables.Activations

    def stops(at, facts):
        seen.append(at.step)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return value(at, facts)

    with monkeypatch.context() as patch:
        patch.setattr(probes.tables, "Activations", stops)
        part = probes.table(run, ["loss", "W_K1"])
    assert "interrupted: 2 steps are kept" in capsys.readouterr().err
    whole = probes.table(run, ["loss", "W_K1"])
    rows = whole[(whole["probe"] == "W_K1") | whole["step"].isin(seen[:2])].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, rows)


def test_a_user_s_measure_is_given_each_step_with_its_model_and_sequences(run):
    calls = []

    def look(at):
        return {"loss": at.model(at.batch.tokens).log_softmax(-1).mean().item(), "n": len(at.batch)}

    table = measure(run, look, step=[0, 12], sequences=3, progress=lambda *counts: calls.append(counts))
    assert table["step"].tolist() == [0, 12]
    assert table["n"].tolist() == [3, 3]
    assert calls == [(1, 2), (2, 2)]
    assert measuring.measure is measure
