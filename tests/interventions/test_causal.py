import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tyro

from induction_memory.errors import InputError, run_script
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.interventions.ablations import ablate
from induction_memory.interventions.causal import causal_curves, delays, path_effects
from induction_memory.interventions.circuits import discover
from induction_memory.interventions.memory_surgery import surgery
from induction_memory.interventions.patching import patch
from induction_memory.model.config import ModelConfig
from induction_memory.runner.components import Graph
from induction_memory.runner.recording import Patch
from induction_memory.source.sources import select
from induction_memory.task.bigrams import BigramTask
from induction_memory.training.run import start
from induction_memory.views.attention_maps import attention


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = RunConfig(
        BigramTask(k=3, length=16),
        ModelConfig(d_model=16, n_ctx=16),
        TrainConfig(steps=3, batch_size=8, full_metrics_every=3),
    )
    return start(config, tmp_path_factory.mktemp("runs") / "tiny", progress=False)


@pytest.fixture(scope="module")
def batch(run):
    return select(run, sequences=8).batch


def test_all_steps_stand_in_one_table_as_if_each_had_been_asked_alone(run, batch):
    every = ablate(run, batch, heads="all", kind=["mean", "initial"], step="all")
    assert every["step"].unique().tolist() == [0, 1, 2, 3]
    alone = ablate(run.model(2), batch, heads="all", kind="mean")
    together = every[(every["step"] == 2) & (every["kind"].isin(["none", "mean"]))].drop(columns="step")
    pd.testing.assert_frame_equal(together.reset_index(drop=True), alone, rtol=1e-4, atol=1e-6)
    first = every[(every["step"] == 0) & (every["kind"] == "initial")]
    assert first["kl"].abs().max() < 1e-5  # back to the initial weights at step 0 is nothing


def test_without_a_step_it_is_the_last_and_without_a_batch_the_evaluation_sequences(run):
    table = ablate(run, heads=["L2H1"], kind="zero")
    assert table["step"].unique().tolist() == [3]


def test_patching_surgery_circuits_and_attention_take_steps_too(run, batch):
    assert patch(run, batch, kind="path", components=["L1H1->L2H1.k"], step=[0, 3])["step"].tolist() == [0, 3]
    table = surgery(run, batch, memory="W_O2", transplant=(run, 0), step="all")
    assert table["step"].tolist() == [0, 1, 2, 3]
    assert table["damage"][0] == 0
    assert table["kl"][0] == pytest.approx(0, abs=1e-6)
    assert len(discover(run, batch, rankings=["exact"], random_orders=0, sizes=[0], step=1).edges) == 24
    view = attention(run, step=[0, 3], batch=batch, length=9)
    assert view.columns == ("step 0", "step 3")
    assert attention(run).title == "Attention of tiny at step 3"


def test_the_causal_curves_joins_necessity_and_recall(run, batch):
    table = causal_curves(run, batch, kind=["zero", "mean"])
    paths = {"L1H1->direct", "L1H1->L2H1.q", "L1H1->L2H1.k", "L1H1->L2H1.v", "L2H1->direct"}
    assert set(table["component"]) == {"L1H1", "L2H1", "W_K1", "W_K2", "W_O2", *paths}
    assert len(table) == 4 * 10 * 2
    np.testing.assert_allclose(table["necessity"], table["intact"] - table["without"])
    assert table[table["component"] == "W_O2"]["recall"].notna().all()
    assert table[table["component"] == "L1H1"]["recall"].isna().all()


def test_the_causal_curves_has_the_accuracies_of_ablate(run, batch):
    table = causal_curves(run, batch, kind="mean")
    rows = ablate(run, batch, components=["heads", "W_K1", "W_K2", "W_O2", "paths"], step="all")
    whole = rows[rows["component"] != "none"].reset_index(drop=True)
    assert table[["step", "component"]].equals(whole[["step", "component"]])
    np.testing.assert_allclose(table["without"], whole["in_context_accuracy"], atol=1e-6)
    np.testing.assert_allclose(table["without_se"], whole["in_context_accuracy_se"], atol=1e-6)


def test_mediation_sets_the_paths_of_a_head_against_its_whole_effect(run, batch):
    table = causal_curves(run, batch, kind="mean")
    paths = path_effects(table)
    assert len(paths) == 4 * (2 + 4 + 2 + 1)
    last = paths[paths["step"] == 3].set_index(["source", "path"])["effect"]
    graph = Graph.of_config(run.model_config)
    assert graph.resolve("L1H1->direct") == ("L1H1->FF2", "L1H1->out")
    recording = select(run).at().runner.record(batch.tokens)
    mean = recording.at("L1H1").mean((0, 1), keepdim=True)

    def accuracy(sites):
        (logits,) = recording.patched_logits([[Patch(site, mean) for site in sites]])
        return (logits.argmax(-1) == batch.targets)[batch.in_context].float().mean().item()

    assert last["L1H1", "total"] == pytest.approx(accuracy([]) - accuracy(["L1H1"]), abs=1e-6)
    assert last["L1H1", "L2H1.k"] == pytest.approx(accuracy([]) - accuracy(["L1H1->L2H1.k"]), abs=1e-6)
    assert last["L1H1", "direct"] == pytest.approx(accuracy([]) - accuracy(["L1H1->FF2", "L1H1->out"]), abs=1e-6)
    parts = sum(last["L1H1", path] for path in ("direct", "L2H1.q", "L2H1.k", "L2H1.v", "rest"))
    assert parts == pytest.approx(last["L1H1", "total"], abs=1e-6)
    assert last["L2H1", "rest"] == pytest.approx(0, abs=1e-6)


def test_a_part_is_born_when_its_curve_changes_level():
    steps = np.arange(10)
    parts = {"recall": steps >= 3, "necessity": 1.0 * (steps >= 7), "without_se": 0.1}
    table = pd.DataFrame({"step": steps, "component": "W_O2", "kind": "mean"} | parts)
    (row,) = delays(table).to_dict("records")
    assert (row["looks_right"], row["necessary"], row["delay"]) == (2.5, 6.5, 4)


@pytest.mark.parametrize("level", [0.15, -1.0])
def test_a_part_without_a_clear_effect_never_becomes_necessary(level):
    steps = np.arange(10)
    parts = {"recall": steps >= 3, "necessity": level * (steps >= 7), "without_se": 0.1}
    (row,) = delays(pd.DataFrame({"step": steps, "component": "W_O2", "kind": "mean"} | parts)).to_dict("records")
    assert row["looks_right"] == 2.5
    assert np.isnan(row["necessary"])
    assert np.isnan(row["delay"])


def test_at_several_steps_the_default_is_what_fits_a_minute(run):
    done = []
    table = ablate(run, kind="zero", step=[0, 3], progress=lambda *counts: done.append(counts))
    assert done == [(1, 2), (2, 2)]
    assert not any("->" in name for name in table["component"])
    assert {"L1H1", "FF2", "embed", "W_K2"} <= set(table["component"])


@pytest.mark.parametrize("name", ["ablations", "attention_maps"])
def test_the_scripts_run_and_explain_themselves(run, name, tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(Path(__file__).parents[2] / "analyses" / f"{name}.py"))
    out = tmp_path / ("table.csv" if name == "ablations" else "maps.svg")
    monkeypatch.setattr("sys.argv", [name, str(run.path), "--out", str(out)])
    tyro.cli(script["main"], description=script["__doc__"])
    assert out.stat().st_size > 500
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        tyro.cli(script["main"], description=script["__doc__"])
    assert f"python analyses/{name}.py" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [f"analyses/{name}.py", "nowhere", "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):
        run_script(script["main"], script["__doc__"])
    assert capsys.readouterr().err.startswith(f"{name}: run: expected")


def test_a_wrong_step_is_answered_with_what_is_stored(run):
    for call in (lambda: ablate(run, step=7), lambda: patch(run, step=7), lambda: attention(run, step=7)):
        with pytest.raises(InputError, match=r"step: expected one of the 4 stored steps \(0 to 3"):
            call()
    with pytest.raises(InputError, match="step: expected one step"):
        discover(run, step="all")
    with pytest.raises(InputError, match="source: expected a source with steps"):
        causal_curves(run.model(0))
