"""The small runs on the other tasks: presets, figures and what ships."""

import pandas as pd
import pytest

import induction_memory as im
from analyses.tools import task_runs
from induction_memory.experiment import presets
from induction_memory.experiment.presets import preset
from induction_memory.experiment.run_config import RunConfig
from induction_memory.task.predictors import Phase
from induction_memory.task.protocol import choose
from induction_memory.trajectory.search import SHIPPED
from induction_memory.views.figures.curves import predictor_figure

NAMES = list(presets.OTHER_TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_comes_back_from_json_and_fits_its_task(name):
    config = preset(name).config
    assert RunConfig.from_dict(config.to_dict()) == config
    assert (config.model.d_vocab, config.model.n_outputs) == (config.task.n_inputs, config.task.n_outputs)
    assert config.model.n_ctx == config.task.length


def test_a_small_run_is_trained_measured_and_thinned(tmp_path, monkeypatch):
    about, config = presets.OTHER_TASKS["copying-middle"]
    small = config.with_settings(["train.steps=4", "train.batch_size=8", "train.checkpoints=every 1"])
    monkeypatch.setitem(presets.OTHER_TASKS, "copying-middle", (about, small))
    monkeypatch.setattr(task_runs, "MOST_STEPS", 3)
    found = task_runs.train_task("copying-middle", tmp_path / "runs")
    assert list(found.distances) == ["task", "elsewhere"]
    assert found.distances["task"].index.tolist() == [0, 1, 2, 3, 4]
    shipped = task_runs.ship_task("copying-middle", found, tmp_path / "out")
    assert shipped.steps[0] == 0
    assert shipped.steps[-1] == 4
    assert 2 <= len(shipped.steps) <= 3
    assert len(shipped.metrics) == 5
    assert "loss_query" in shipped.metrics
    assert not [name for name in shipped.metrics if "_norm_" in name]


def test_the_figure_has_a_curve_per_predictor_and_a_cut_axis():
    table = pd.DataFrame({"a": [1.0, 0.1], "b": [2.0, 900.0]}, index=pd.Index([0, 5], name="step"))
    figure = predictor_figure({"task": table}, {"task": [Phase("a", 0, 5)]})
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    assert axes.get_ylim()[1] < 10
    assert len(axes.patches) == 1


@pytest.mark.parametrize("name", [name for name in NAMES if (SHIPPED / name).exists()])
def test_a_shipped_run_is_small_and_has_the_configuration_of_its_preset(name):
    run = im.load(name)
    assert run.config == preset(name).config.with_settings(["train.threads=1"])
    most = 4e6 if name == "factual-recall" else 2.2e6  # 256 facts need wide feed-forwards
    assert sum(file.stat().st_size for file in run.path.iterdir() if file.is_file()) < most
    distances = im.probes.predictor_distances(run, step=[int(run.steps[-1])], sequences=32)
    last = distances.iloc[0]
    assert last.iloc[-1] == last.min()  # it ends closest to the Bayes-optimal predictor


def test_without_the_matrix_beside_the_attention_noise_no_longer_hides_the_output():
    """Chen, Bruna & Bietti: W_F holds the noise, so on clean sequences dropping it raises the accuracy in context."""
    run = im.load("noisy-triggers-beside")
    batch = choose(run.task, "variants", "clean").sample(64, im.task.step_rng(5, 0))
    table = im.ablate(run, batch, components=["W_F"], kind="zero", step=[160, 500, 2000])
    accuracy = table.pivot_table(index="step", columns="component", values="in_context_accuracy")
    assert (accuracy["W_F"] > accuracy["none"]).all()
    assert accuracy.loc[500, "none"] < 0.7
    assert accuracy.loc[500, "W_F"] > 0.93


def test_a_run_with_fewer_outputs_than_tokens_has_roles():
    roles = im.heads.identify("copying-any").roles.set_index("head")["role"]
    assert roles.to_dict() == {"L1H1": "previous-token", "L2H1": "induction"}
