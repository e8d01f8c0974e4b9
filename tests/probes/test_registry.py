import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import induction_memory as im
from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.probes import registry, tables
from induction_memory.probes.prediction import VISIBLE
from induction_memory.task.bayes import optimal_scores
from induction_memory.task.sampler import sample, step_rng
from induction_memory.training.run import start
from induction_memory.trajectory.trajectory import load
from tests.probe_sources import TINY, stacked, untrained
from tests.tiny_runs import tiny

FIXED_TINY = replace(TINY, triggers="fixed")
SMALL = ["W_K1", "norm_W_O2", "loss", "entropy1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("runs") / "run", progress=False).path


@pytest.fixture
def run(folder, tmp_path):
    """A copy of its own, so that what one test caches no other test sees."""
    shutil.copytree(folder, tmp_path / "run")
    return load(tmp_path / "run")


@pytest.fixture
def measured(monkeypatch):
    """The names that are really computed."""
    names = []
    measure = tables.value

    def counting(probe, subject):
        names.append(probe.name)
        return measure(probe, subject)

    monkeypatch.setattr(tables, "value", counting)
    return names


def test_every_probe_has_one_line_with_its_formula_and_one_family():
    names = probes.names()
    assert len(names) > 100
    for name, explanation in names.items():
        assert "\n" not in explanation
        assert 10 < len(explanation) < 130
        matching = [f for f, m in tables.FAMILIES.items() if name in m.PROBES]
        assert len(matching) == 1, name
        assert tables.find(name).family == matching[0]


@pytest.mark.slow
def test_a_trained_run_equals_a_loop_over_its_models(run):
    names = ["recall", "weights", "composition", "attention", "prediction", "attribution"]
    batch = sample(run.config.task, 8, step_rng(5, 0))
    together = probes.table(run, names, batch=batch)
    for step in (0, 3, 12):
        alone = probes.table(run.model(step), names, task=run.config.task, batch=batch)
        mine = together.loc[together["step"] == step].set_index(["probe", "head"])["value"]
        theirs = alone.set_index(["probe", "head"])["value"]
        assert set(mine.index) - set(theirs.index) == {
            ("distance_W_K1", "L1H1"),
            ("distance_W_K2", "L2H1"),
            ("distance_W_O2", "L2H1"),
            ("distance_W_F", ""),
        }
        recalls = [key for key in theirs.index if key[0] in ("W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_O2")]
        assert (mine[recalls] == theirs[recalls]).all()
        np.testing.assert_allclose(mine[theirs.index], theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_optimal_loss_is_below_the_run_s_at_every_step(run):
    table = probes.wide(probes.table(run, "prediction"))
    best = optimal_scores(run.config.task, sample(run.config.task, 64, step_rng(run.config.train.eval_seed, 0))).overall
    assert (table["loss"] > table["bayes_loss"] - 3 * best.loss_error).all()
    np.testing.assert_allclose(table["excess"], table["loss"] - table["bayes_loss"])
    for whole in ("excess", "kl_bayes"):
        np.testing.assert_allclose(sum(table[f"{whole}_{kind}"] for kind in VISIBLE), table[whole])


def test_the_table_is_tidy_and_the_paper_s_recalls_are_wide(run):
    table = probes.table(run)
    assert list(table.columns) == ["step", "probe", "head", "value"]
    assert "random" in table.attrs["skipped"]["W_K2_triggers"]
    wide = probes.recall(run)
    assert wide.index.tolist() == run.steps.tolist()
    assert wide.columns.tolist() == ["W_K1", "W_K1_first64", "W_K1_causal", "W_K2", "W_O2", "W_F_kl"]
    assert wide.attrs["skipped"] == table.attrs["skipped"]


def test_the_default_batch_is_the_run_s_own(run):
    batch = sample(run.config.task, 64, step_rng(run.config.train.eval_seed, 0))
    log_q = run.model(12)(batch.tokens).log_softmax(-1)
    expected = -log_q.gather(-1, batch.targets.unsqueeze(-1)).mean().item()
    assert probes.table(run, ["loss"], step=[12])["value"].item() == pytest.approx(expected, rel=1e-5)


def test_some_steps_are_those_of_the_whole(run):
    whole = probes.table(run, SMALL)
    part = probes.table(run, SMALL, step=[12, 3])
    expected = whole.loc[whole["step"].isin([3, 12])].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, expected)
    with pytest.raises(
        InputError, match=r"step: expected one of the 7 stored steps \(0 to 12; next to it 4 and 8\), got 5"
    ):
        probes.table(run, SMALL, step=[5])


def test_what_cannot_be_had_is_skipped_with_its_reason_and_the_others_computed():
    model = untrained(d_model=24, length=16, feed_forward="none")
    table = probes.table(model, ["W_F_kl", "W_O2", "dla_feed_forward2", "loss"], task=TINY)
    assert table["probe"].tolist() == ["W_O2", "loss"]
    assert table.attrs["skipped"]["W_F_kl"] == (
        "needs a linear or ReLU feed-forward in the last layer, the model has none"
    )
    assert all("\n" not in reason for reason in table.attrs["skipped"].values())
    one_layer = untrained(d_model=24, length=16, n_layers=1)
    table = probes.table(one_layer, "all", task=TINY)
    assert table.attrs["skipped"]["W_K2"] == "needs 2 layers, the model has 1"
    assert {"W_K1", "W_F_kl", "entropy1", "loss"} <= set(table["probe"])


def test_weights_alone_have_weight_probes_only():
    weights = stacked(untrained(d_model=24, length=16), 3, ("blocks.0.attn.W_K",))
    table = probes.table(weights, ["W_K1", "loss"], task=TINY)
    assert table["step"].tolist() == [0, 1, 2]
    assert "needs a model to run" in table.attrs["skipped"]["loss"]


@pytest.mark.slow
def test_every_architecture_gives_every_probe_or_a_reason():
    batch = sample(TINY, 8, step_rng(5, 0))
    for config in (
        ModelConfig.full(d_model=24, n_ctx=16, n_heads=2, layer_norm=True, parallel_blocks=True),
        ModelConfig(d_model=24, n_ctx=16, feed_forward_layers="all", tied_output=True),
        ModelConfig.full(d_model=24, n_ctx=16, n_layers=3, n_heads=3, positions="sinusoidal"),
        ModelConfig.full(d_model=24, n_ctx=16, n_layers=1, feed_forward="none"),
        ModelConfig(d_model=24, n_ctx=16, feed_forward="none"),
        ModelConfig.full(d_model=24, n_ctx=16, n_heads=4, layer_norm=True),
    ):
        table = probes.table(build(config), "all", task=TINY, batch=batch)
        measured = set(table["probe"]) | set(table.attrs["skipped"])
        assert measured >= set(probes.names())
        assert all(name.startswith(("kl_to_", "mass_on_")) for name in measured - set(probes.names()))  # the task's own
        assert table["value"].notna().all()


def test_a_model_that_diverged_reads_as_nothing_recalled_and_nan():
    model = build(ModelConfig(d_model=16, n_ctx=16))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.fill_(torch.nan)
    table = probes.table(model, "all", task=FIXED_TINY)
    found: dict[str, float] = dict(zip(table["probe"], table["value"], strict=True))
    for name in ("W_K1", "W_K1_causal", "W_K2", "W_K2_triggers", "W_O2"):
        assert found[name] == 0, name
    for name in ("W_K1_rank", "W_K1_causal_rank", "W_K2_rank", "W_K2_triggers_rank", "W_O2_rank"):
        assert found[name] >= 3, name
    for name in ("accuracy", "accuracy_in_context", "match2", "previous_token_argmax1", "soft_rank_W_O2", "copying2"):
        assert np.isnan(found[name]), name


def test_other_arguments_are_another_result(run, measured):
    probes.table(run, ["loss"], step=[0])
    probes.table(run, ["loss"], step=[0], batch=sample(TINY, 4, step_rng(9, 0)))
    probes.table(run, ["loss"], step=[0], batch=sample(TINY, 4, step_rng(8, 0)))
    assert len(measured) == 3


def test_hooks_are_gone_after_a_probe():
    model = untrained(d_model=24, length=16)
    probes.table(model, ["attention", "attribution"], task=TINY)
    assert not any(hook.fwd_hooks or hook.bwd_hooks for hook in model.hook_dict.values())


@pytest.fixture
def own():
    """Names that a test registers, taken away afterwards."""
    yield registry.registered
    registry.registered.clear()


def test_a_plain_function_is_a_probe(run):
    def norm_by_hand(subject):
        return subject.weights["blocks.1.attn.W_O"].flatten(1).norm(dim=1)

    found = probes.table(run, ["norm_W_O2", norm_by_hand])
    assert found["probe"].unique().tolist() == ["norm_W_O2", "norm_by_hand"]
    ours, theirs = (found.loc[found["probe"] == name, "value"] for name in ("norm_by_hand", "norm_W_O2"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_registered_probe_is_listed_measured_and_never_cached(run, own, measured):
    @im.probes.register("own_norm", about="Frobenius norm of each head's W_O2", layers=(2,))
    def norm(subject):
        return torch.linalg.matrix_norm(subject.memory("W_O2"))

    @im.probes.register("own_entropy", about="mean entropy of layer 1", of="activations", layers=(1,))
    def entropy(activations):
        return torch.special.entr(activations.pattern(1)).sum(-1).mean((0, 2))

    assert probes.names()["own_norm"] == "Frobenius norm of each head's W_O2"
    for _ in range(2):
        table = probes.table(run, ["own_norm", entropy], step=[0, 12])
        assert table["head"].tolist() == ["L2H1"] * 2 + ["L1H1"] * 2
        assert (table["value"] > 0).all()
    assert measured.count("own_norm") == 2
    assert set(probes.table(run, "own", step=[0])["probe"]) == {"own_norm", "own_entropy"}


def test_what_is_wrong_with_a_user_s_probe_is_said_in_one_line(run, own, unchecked):
    for function, says in (
        (lambda subject: "no", "<lambda>: expected numbers from the probe"),
        (lambda subject: torch.zeros(2), "<lambda>: expected a first axis of 7 steps"),
        (lambda subject: torch.zeros(subject.n_steps, 4), "<lambda>: expected one value per step, got 4"),
    ):
        with pytest.raises(InputError) as error:
            probes.table(run, [function])
        assert str(error.value).startswith(says)
        assert "\n" not in str(error.value)
    for taken in ("W_O2", "entropy7", "recall", "all"):
        with pytest.raises(InputError, match="probe: expected a name that the package does not use"):
            im.probes.register(taken, about="a name that is taken")
    with pytest.raises(InputError, match="probes: expected names of probes or of families, or functions, got 3"):
        probes.table(run, [3])


def test_tables_of_probes_interventions_and_scores_name_heads_alike():
    model = untrained(d_model=24, length=16, n_heads=2, identity_queries=False)
    batch = sample(TINY, 8, step_rng(5, 0))
    heads = set(im.ablate(model, batch, heads="all", kind="zero")["component"]) - {"none"}
    assert heads >= {"L1H1", "L1H2", "L2H1", "L2H2"}
    table = probes.table(model, "all", task=TINY, batch=batch)
    named = {part for name in table["head"].unique() for part in name.split(">")}
    assert named == {"", "L1H1", "L1H2", "L2H1", "L2H2"}
    assert set(probes.head_scores(model)["head"]) == {"L1H1", "L1H2", "L2H1", "L2H2"}
    between = probes.recall(model, "W_O2", inputs="W_V2 w_E", outputs="w_U")
    assert between["head"].tolist() == ["L2H1", "L2H2"]
    joined = between.merge(table.loc[table["probe"] == "W_O2"], on="head")
    assert (joined["recall"] == joined["value"]).all()
    single = probes.table(untrained(d_model=24, length=16), ["W_K1", "W_K2", "W_F_kl"], task=TINY)
    assert single["head"].tolist() == ["L1H1", "L1H1>L2H1", ""]


def test_recall_of_a_model_without_a_task_is_no_table_of_other_scores():
    model = untrained(d_model=24, length=16)
    with pytest.raises(InputError, match=r"task: expected a task, memories by name, or tokens="):
        probes.recall(model)
    assert probes.recall(model, "W_O2").equals(probes.recall(model, "W_O2", task=TINY))


def test_recall_of_a_task_without_memories_says_what_can_be_measured_instead():
    with pytest.raises(InputError, match=r"got 'factual-recall' \(im\.probes\.table measures what this task offers"):
        probes.recall("factual-recall")
    assert probes.table("factual-recall", step="last")["probe"].str.startswith("kl_to_").all()
