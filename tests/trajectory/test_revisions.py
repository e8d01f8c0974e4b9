"""Series of checkpoints that others trained: in order, one model at a time, equal to what transformers computes."""

import gc
import json
import os
import shutil
import weakref

import numpy as np
import pandas as pd
import pytest
import torch

from induction_memory import measure
from induction_memory.errors import InputError
from induction_memory.probes.attention import head_scores
from induction_memory.trajectory.search import is_series
from induction_memory.trajectory.series import revisions
from induction_memory.trajectory.verification import check, gaps
from tests.trajectory.series import CONTEXT, VOCAB, write_series

STEPS = [0, 100, 200, 300, 400]


@pytest.fixture(scope="module", params=["neox", "gpt2"])
def series(request, tmp_path_factory):
    return write_series(request.param, tmp_path_factory.mktemp(request.param), STEPS)


@pytest.fixture
def copy(series, tmp_path):
    return shutil.copytree(series, tmp_path / "copy")


def found(folder, finding):
    table = check(revisions(folder))
    return table[table["finding"] == finding]


def norms(model):
    return pd.DataFrame({"norm": [sum(float(p.detach().norm()) for p in model.parameters())]})


@pytest.mark.slow
def test_models_come_in_the_order_of_steps_and_equal_transformers(series):
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(CONTEXT).remainder(VOCAB)[None]
    opened = revisions(series)
    assert opened.steps.tolist() == STEPS
    for step, model in opened.at([0, 400]).items():
        with torch.no_grad():
            ours = model(tokens)
            theirs = AutoModelForCausalLM.from_pretrained(series / f"step{step}")(tokens).logits
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        assert model.tokenizer is None  # none was saved, none is invented


@pytest.mark.parametrize("kind", ["llama", "llama-shared", "olmo", "olmo2"])
def test_one_model_is_refilled_and_equals_transformers_at_every_step(kind, tmp_path):
    from transformers import AutoModelForCausalLM

    tokens, models = torch.arange(CONTEXT).remainder(VOCAB)[None], set()
    opened = revisions(write_series(kind, tmp_path, STEPS[:3]))
    for (step,), model in opened.in_turn(STEPS[:3]):
        models.add(id(model))
        with torch.no_grad():
            theirs = AutoModelForCausalLM.from_pretrained(tmp_path / f"step{step}")(tokens).logits
            torch.testing.assert_close(model(tokens), theirs, rtol=0, atol=1e-5)
    assert len(models) == 1


@pytest.mark.slow
def test_one_model_is_alive_at_a_time(series):
    alive, values = [], []
    seen: list[weakref.ref] = []
    for _, model in revisions(series).in_turn(STEPS):
        gc.collect()
        seen.append(weakref.ref(model))
        alive.append(len({id(ref()) for ref in seen if ref() is not None}))
        values.append(norms(model)["norm"][0])
    assert alive == [1] * len(STEPS)
    assert len(set(values)) == len(STEPS)


@pytest.mark.slow
def test_what_was_measured_is_kept_and_an_interrupted_analysis_goes_on(series, tmp_path, monkeypatch):
    from induction_memory.probes import attention

    measured, run = [], attention.run_repeated

    def stops(*given):
        measured.append(1)
        if len(measured) == 3:
            raise KeyboardInterrupt
        return run(*given)

    monkeypatch.setattr(attention, "run_repeated", stops)
    opened = revisions(series, keep=tmp_path / "kept")
    assert set(head_scores(opened, step="all")["step"]) == set(STEPS[:2])
    table = head_scores(opened, step="all")
    assert set(table["step"]) == set(STEPS)
    assert len(measured) == 3 + 3
    pd.testing.assert_frame_equal(head_scores(opened, step="all"), table)
    assert len(measured) == 3 + 3


def test_a_replaced_file_of_equal_size_and_time_is_measured_anew(copy):
    opened = revisions(copy)
    before = head_scores(opened, step=400)
    path = sorted((copy / "step400").glob("*.safetensors"))[0]
    stat, other = path.stat(), (copy / "step0" / path.name).read_bytes()
    assert len(other) == stat.st_size
    path.write_bytes(other)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not head_scores(revisions(copy), step=400).equals(before)


def test_two_series_of_one_name_with_equal_sizes_and_times_share_a_folder_of_results(copy, tmp_path):
    other, kept = shutil.copytree(copy, tmp_path / "other" / copy.name), tmp_path / "kept"
    for path in sorted((other / "step400").glob("*.safetensors")):
        stat = path.stat()
        path.write_bytes((copy / "step0" / path.name).read_bytes())
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert path.stat().st_size == stat.st_size
    first, second = (head_scores(revisions(folder, keep=kept), step=400) for folder in (copy, other))
    assert not second.equals(first)
    pd.testing.assert_frame_equal(second, head_scores(revisions(other, keep=False), step=400))


def test_a_hub_cache_is_read_by_its_revisions(series, tmp_path):
    cache = tmp_path / "models--someone--tiny"
    for number, step in enumerate(STEPS):
        shutil.copytree(series / f"step{step}", cache / "snapshots" / f"commit{number}")
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / f"stage1-step{step}-tokens{step}B").write_text(f"commit{number}\n")
    (cache / "refs" / "main").write_text("commit0")
    opened = revisions(cache)
    assert is_series(cache)
    assert opened.steps.tolist() == STEPS
    assert opened.tokens == [step * 10**9 for step in STEPS]
    assert check(opened).empty


def test_pairs_and_paths_are_series_too(series):
    chosen = revisions([series / "step400", series / "step0"])
    assert chosen.steps.tolist() == [0, 400]
    pairs = ((step, torch.nn.Linear(2, 2)) for step in (1, 2))
    assert measure(revisions(pairs), lambda at: norms(at.model))["step"].tolist() == [1, 2]


def test_a_measure_may_return_a_table_or_one_row_of_numbers():
    def pairs():
        return [(step, torch.nn.Linear(2, 2)) for step in (1, 2)]

    table = measure(revisions(pairs()), lambda at: {"inputs": at.model.in_features})
    assert table.to_dict("list") == {"step": [1, 2], "inputs": [2, 2]}
    with pytest.raises(InputError, match="what: expected a table, or numbers by name"):
        measure(revisions(pairs()), lambda at: 3.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: revisions(path / "none"), "source: expected a folder of checkpoints"),
        (lambda path: revisions(path), "expected folders with config.json"),
        (lambda path: list(revisions([(2, torch.nn.Identity()), (1, torch.nn.Identity())]).items()), "steps that grow"),
    ],
)
def test_what_is_no_series_is_refused(make, message, tmp_path):
    with pytest.raises(InputError, match=message):
        make(tmp_path)


def test_two_checkpoints_of_one_step_are_refused(copy):
    shutil.copytree(copy / "step100", copy / "checkpoint-100")
    with pytest.raises(InputError, match="one checkpoint per step"):
        revisions(copy)


def test_a_sound_series_has_no_findings(series):
    assert check(revisions(series)).empty


def test_a_repeated_checkpoint_is_found(copy):
    shutil.rmtree(copy / "step300")
    shutil.copytree(copy / "step100", copy / "step300")
    rows = found(copy, "identical checkpoint")
    assert rows[["step", "other_step"]].values.tolist() == [[300, 100]]
    assert found(copy, "off the path").empty is False


def test_a_shard_of_the_last_model_is_found(copy):
    shard = sorted((copy / "step400").glob("*.safetensors"))[0].name
    shutil.copy(copy / "step400" / shard, copy / "step200" / shard)
    rows = found(copy, "identical shard")
    assert rows[["step", "other_step", "where"]].values.tolist() == [[400, 200, shard]]
    assert found(copy, "identical checkpoint").empty


def test_a_cut_file_is_named(copy):
    path = sorted((copy / "step200").glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:100])
    rows = found(copy, "unreadable")
    assert rows["step"].tolist() == [200]
    assert path.name in rows["where"].item()


def test_a_missing_shard_is_found(copy):
    lost = sorted((copy / "step200").glob("*.safetensors"))[0]
    lost.unlink()
    rows = found(copy, "refused")
    assert rows["step"].tolist() == [200]
    assert lost.name in rows["detail"].item()


def test_a_changed_configuration_is_found(copy):
    path = copy / "step200" / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"layer_norm_epsilon": 1e-3, "transformers_version": "0.0"}))
    rows = found(copy, "configuration")
    assert rows["step"].tolist() == [200, 300]
    assert "layer_norm_epsilon" in rows["detail"].iloc[0]
    assert "transformers_version" not in rows["detail"].iloc[0]


def test_a_missing_step_is_found(copy):
    shutil.rmtree(copy / "step200")
    rows = found(copy, "gap")
    assert rows[["step", "other_step", "detail"]].values.tolist() == [[100, 300, "step 200 is missing"]]


def test_schedules_that_are_regular_have_no_gaps():
    pythia = [0, *(2**i for i in range(10)), *range(1000, 10000, 1000)]
    assert gaps(pythia) == []
    assert [one.detail for one in gaps([1, 2, 4, 16, 32])] == ["step 8 is missing"]
    assert gaps(np.arange(0, 50, 7).tolist()) == []
    assert gaps([0, 100, 200, 300, 450]) == []


def test_a_jump_of_the_weights_is_found(tmp_path):
    folder = write_series("gpt2", tmp_path, [0, 100, 200, 300, 400, 500])
    from safetensors.torch import load_file, save_file

    for step in (300, 400, 500):  # another run from here on
        for path in (folder / f"step{step}").glob("*.safetensors"):
            save_file({n: t + 3.0 for n, t in load_file(path).items()}, path, metadata={"format": "pt"})
    rows = found(folder, "jump")
    assert rows[["other_step", "step"]].values.tolist() == [[200, 300]]


def test_a_gap_before_the_last_checkpoint_is_found():
    (one,) = gaps([0, 100, 200, 300, 400, 700])
    assert (one.where, one.detail) == ("steps 400 to 700", "2 steps are missing")
    assert gaps([0, 100, 200, 500]) == []  # two distances are no schedule
