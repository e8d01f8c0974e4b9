import numpy as np
import pandas as pd
import pytest
import torch

from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.interventions.ablations import Replacements, ablate, kinds
from induction_memory.interventions.patching import patch
from induction_memory.interventions.scores import Scorer, is_right
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner.choice import record
from induction_memory.runner.components import Graph, component_names
from induction_memory.runner.weights import mixed, parameters, replaced
from induction_memory.task.batch import masked_mean
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corruptions import other_outputs
from induction_memory.task.sampler import sample, step_rng

TASK = BigramTask(k=3, length=20)
CONFIG = ModelConfig.full(d_model=16, n_heads=2, n_ctx=20)


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 6, step_rng(0, 0))


@pytest.fixture
def model():
    return build(CONFIG, seed=0)


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


PARTS = ["heads", "layers", "feed_forward", "embeddings", "W_Q1", "W_out2", "pos->L2.k", "L1->L2.k"]


def test_a_target_is_the_argmax_also_where_logits_tie_and_unknown_where_they_are_nan():
    logits = torch.tensor([[1.0, 3.0, 2.0], [4.0, 1.0, 0.0]])
    assert is_right(logits, torch.tensor([1, 1])).tolist() == [1, 0]
    ties = torch.tensor([[2.0, 2.0, 1.0], [0.0, 1.0, 1.0], [torch.nan, 1.0, 0.0]])
    for targets in torch.tensor([[0, 1, 0], [1, 2, 1], [2, 0, 2]]):
        found = is_right(ties, targets)
        assert torch.equal(found[:2].bool(), (ties.argmax(-1) == targets)[:2])
        assert found[2].isnan()


def test_a_model_whose_logits_are_nan_has_no_accuracy(model, batch):
    with torch.no_grad():
        model.unembed.b_U[3] = torch.nan
    table = ablate(model, batch, heads="all", kind="mean")
    assert table.filter(like="accuracy").isna().all(axis=None)
    assert patch(model, batch, corruption="trigger")["accuracy"].isna().all()


def test_every_kind_stands_in_one_table_with_its_scores(model, batch):
    table = ablate(model, batch, components=PARTS, kind="all", initial=build(CONFIG, seed=1))
    parts = table[table["component"] != "none"]
    assert set(parts["kind"]) == set(kinds())
    assert (parts.groupby("component").size() == len(kinds())).all()
    assert {"L1H1", "L2H2", "L1", "FF1", "embed", "pos", *PARTS[4:]} <= set(parts["component"])
    for name in ("in_context_accuracy", "in_context_loss", "global_accuracy", "global_loss", "kl"):
        assert np.isfinite(table[[name, f"{name}_se"]].to_numpy()).all()
    assert table.iloc[0]["kl"] == pytest.approx(0, abs=1e-6)


def test_everything_is_ablated_when_nothing_is_named(model):
    names = component_names(Graph.of(model), None, None)
    assert len(names) == len(set(names))
    assert {"L1H1", "L2", "FF1", "embed", "pos", "W_K1", "W_in2", "pos->L2.k", "FF1->out"} <= set(names)
    assert component_names(Graph.of(model), "all", None) == ["L1H1", "L1H2", "L2H1", "L2H2"]
    assert component_names(Graph.of(model), ["L2H1", "L1H1"], "W_K1") == ["L2H1", "L1H1", "W_K1"]


def test_zeroing_a_head_equals_a_forward_with_a_hook_that_zeroes_it(model, batch):
    table = ablate(model, batch, heads=["L2H1"], kind="zero").set_index("component")

    def zero(z, hook):
        z = z.clone()
        z[:, :, 0] = 0
        return z

    logits = model.run_with_hooks(batch.tokens, fwd_hooks=[("blocks.1.attn.hook_z", zero)])
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
    assert table.loc["L2H1", "in_context_loss"] == pytest.approx(loss[batch.in_context].mean().item(), rel=1e-5)
    assert table.loc["L2H1", "global_loss"] == pytest.approx(loss[batch.global_].mean().item(), rel=1e-5)


@pytest.mark.parametrize("point", ["blocks.0.attn.hook_z", "blocks.1.hook_mlp_out", "blocks.1.mlp.hook_post"])
def test_results_are_those_of_the_model_as_it_was_handed_over_hooks_included(batch, point):
    model = build(CONFIG, seed=0)
    model.add_perma_hook(point, lambda value, hook: torch.zeros_like(value))
    loss = torch.nn.functional.cross_entropy(model(batch.tokens).transpose(1, 2), batch.targets, reduction="none")
    expected = loss[batch.in_context].mean().item()
    table = ablate(model, batch, heads="all", kind="zero").set_index("component")
    assert table.loc["none", "in_context_loss"] == pytest.approx(expected, rel=1e-5)
    if point == "blocks.0.attn.hook_z":
        assert table.loc["L1H1", "kl"] == pytest.approx(0, abs=1e-6)
    probed = probes.table(model, ["loss_in_context"], batch=batch)
    assert probed["value"].item() == pytest.approx(expected, rel=1e-5)
    assert len(model.hook_dict[point].fwd_hooks) == 1


@pytest.mark.parametrize("name", ["L1H2", "L2", "W_K2", "W_V1", "W_O2", "W_Q1", "W_in2", "FF1", "embed", "pos"])
def test_initial_weights_are_what_a_forward_with_those_weights_gives(model, batch, name):
    initial = build(CONFIG, seed=1)
    row = ablate(model, batch, components=[name], kind="initial", initial=initial).set_index("component").loc[name]
    recording = record(model, batch.tokens)
    weights = mixed(parameters(model), parameters(initial), recording.graph.parameters(name))
    with replaced(model, weights), torch.no_grad():
        expected = Scorer(recording.logits, batch)(model(batch.tokens))
    assert row["kl"] == pytest.approx(expected["kl"].item(), rel=1e-3, abs=1e-6)
    assert row["in_context_loss"] == pytest.approx(expected["in_context_loss"].item(), rel=1e-4)


def test_initial_weights_of_another_model_are_refused(model, batch):
    other = build(CONFIG.replace(d_model=32), seed=1)
    with pytest.raises(InputError, match=r"initial\.embed\.W_E: expected shape \(\d+, \d+\), got \(\d+, 32\)"):
        ablate(model, batch, heads="all", kind="initial", initial=other)


@pytest.mark.parametrize("kind", ["resample", "mean-position"])
def test_one_sequence_has_no_other_to_take_or_to_average_with(model, kind):
    one = sample(TASK, 1, step_rng(0, 0))
    with pytest.raises(InputError, match="kind: expected two or more sequences"):
        ablate(model, one, heads="all", kind=kind)
    assert kind not in set(ablate(model, one, heads="all", kind="all")["kind"])


def test_weights_that_have_not_learnt_are_replaced_by_themselves(model, batch):
    initial = build(CONFIG, seed=0)
    with torch.no_grad():
        initial.blocks[0].attn.W_K.zero_()
    kept = Replacements(record(model, batch.tokens), batch, initial)
    assert kept.patches("W_O2", "initial", effective=True) == kept.patches("FF1", "initial", effective=True) == []
    assert [patch.site for patch in kept.patches("W_K1", "initial", effective=True)] == ["L1H1.k", "L1H2.k"]
    rows = ablate(model, batch, components=["W_O2", "W_K1"], kind="initial", initial=initial).set_index("component")
    assert (
        rows.loc["W_O2", "in_context_loss"]
        == rows.loc["none", "in_context_loss"]
        != rows.loc["W_K1", "in_context_loss"]
    )


def test_what_all_sequences_share_is_not_changed_by_that_of_another_or_by_their_mean(model, batch):
    values = Replacements(record(model, batch.tokens), batch)
    for kind in ("mean-position", "resample", "resample-output"):
        assert values.patches("pos", kind)
        assert values.patches("pos", kind, effective=True) == []
        assert values.patches("embed", kind, effective=True)
    rows = ablate(model, batch, components=["pos", "embed"], kind="resample").set_index("component")
    assert rows.loc["pos", "kl"] == rows.loc["none", "kl"] < 1e-6 < rows.loc["embed", "kl"]


def test_the_kinds_put_what_they_say_in_place(model, batch):
    recording = record(model, batch.tokens)
    y = recording.at("L1H1")
    values = Replacements(recording, batch)
    assert not values.value("L1H1", "zero").any()
    torch.testing.assert_close(values.value("L1H1", "mean")[0, 0], y.reshape(-1, 16).mean(0))
    torch.testing.assert_close(values.value("L1H1", "mean-position")[0, 4], y[:, 4].mean(0))
    torch.testing.assert_close(values.value("L1H1", "resample")[3], y[2])
    other = record(model, other_outputs(batch, np.random.default_rng(0)).tokens)
    torch.testing.assert_close(values.value("L1H1", "resample-output"), other.at("L1H1"))
    noise = values.value("L1H1", "noise")
    assert noise.shape == y.shape
    torch.testing.assert_close(noise.mean((0, 1)), y.mean((0, 1)), atol=0.1, rtol=0)
    torch.testing.assert_close(noise.std((0, 1)), y.std((0, 1)), atol=0.1, rtol=0.3)


def test_positions_alone_are_not_missed_when_replaced_by_their_mean_at_each_position(model, batch):
    table = ablate(model, batch, components=["pos"], kind="all").set_index("kind")
    assert table.loc["mean-position", "kl"] == pytest.approx(0, abs=1e-6)
    assert table.loc["resample", "kl"] == pytest.approx(0, abs=1e-6)
    assert table.loc["zero", "kl"] > 1e-4


def test_changed_outputs_change_only_what_follows_a_trigger(batch):
    other = other_outputs(batch, np.random.default_rng(0))
    for clean, changed, triggers, outputs in zip(
        batch.tokens.tolist(), other.tokens.tolist(), batch.triggers.tolist(), batch.outputs.tolist(), strict=True
    ):
        pair = dict(zip(triggers, outputs, strict=True))
        for t, (before, after) in enumerate(zip(clean, changed, strict=True)):
            follows = t > 0 and pair.get(clean[t - 1]) == before
            assert (before != after) == follows


def test_the_model_is_bitwise_the_same_afterwards_even_after_an_exception(model, batch):
    before = snapshot(model)
    ablate(model, batch, heads="all", kind="all", initial=build(CONFIG, seed=1))
    weights = {"blocks.0.attn.W_K": torch.zeros_like(model.W_K[0])}

    def fail():
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"), replaced(model, weights):
        fail()
    with replaced(model, weights):
        assert not model.W_K[0].any()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(hook.fwd_hooks for hook in model.hook_dict.values())
    flags = (model.cfg.use_attn_result, model.cfg.use_split_qkv_input, model.cfg.use_hook_mlp_in)
    assert not any(flags)


def test_the_standard_error_is_that_of_a_ratio_over_sequences():
    values, mask = torch.tensor([[1.0, 0, 1], [0, 0, 1]]), torch.tensor([[True, True, True], [True, False, False]])
    mean, se = masked_mean(values, mask)
    assert mean.item() == pytest.approx(2 / 4)
    # sums 2 and 0, counts 3 and 1: residuals 2 - 1.5 and 0 - 0.5
    assert se.item() == pytest.approx((2 * (0.5**2 + 0.5**2)) ** 0.5 / 4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"heads": ["L3H1"]}, "heads: expected heads out of L1H1, L1H2, L2H1, L2H2, got 'L3H1'"),
        ({"heads": ["L1H3"]}, "heads: expected heads out of L1H1, L1H2, L2H1, L2H2, got 'L1H3'"),
        ({"components": ["L2H1->L1H1.k"]}, "component: expected a writer that comes before the input"),
        ({"components": []}, "components: expected a name, or a list of one or more"),
        ({"kind": "sideways"}, "kind: expected all or one of zero, mean"),
        ({"kind": "initial"}, "kind: expected a trajectory, or the model before training"),
        ({"step": 4}, "step: expected none"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(unchecked, model, batch, arguments, says):
    with pytest.raises(InputError) as error:
        ablate(model, batch, **arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("head", [(1, 1), "L0H0", 1])
def test_a_head_that_is_counted_in_another_way_is_refused_with_the_rule(model, batch, head):
    for ask in ({"heads": [head]}, *([{"components": [head]}] if isinstance(head, str) else [])):
        with pytest.raises(InputError, match=r"L2H1 is blocks\.1, head 0 of TransformerLens"):
            ablate(model, batch, **ask)


def test_hooks_of_transformer_lens_name_components_too(model, batch):
    pairs = {"blocks.1.attn.hook_z": "L2", "blocks.0.hook_mlp_out": "FF1", "hook_pos_embed": "pos"}
    by_hook, by_name = (ablate(model, batch, components=list(names)) for names in (pairs, pairs.values()))
    assert by_hook["component"].tolist() == ["none", *pairs]
    pd.testing.assert_frame_equal(by_hook.drop(columns="component"), by_name.drop(columns="component"))


def test_a_model_alone_runs_on_random_tokens_repeated_once(model):
    assert ablate(model, heads="all").attrs["sequences"] == 64


def test_kinds_that_all_leaves_out_are_said_in_the_table_and_in_one_line(model, batch, caplog):
    table = ablate(model, batch.tokens, heads=["L1H1"], kind="all")
    assert list(table.attrs["left_out"]) == ["resample-output", "initial"]
    assert not set(table.attrs["left_out"]) & set(table["kind"])
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "resample-output (expected sequences with triggers" in line
