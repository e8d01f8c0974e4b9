"""Hooks to take away give what the package itself measures, beside a user's own hooks, and leave nothing behind."""

import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner.choice import record
from induction_memory.runner.recording import Patch

CONFIG = ModelConfig.full(d_model=16, n_ctx=13, d_vocab=5, n_heads=2, layer_norm=True)


@pytest.fixture
def model():
    return build(CONFIG, seed=1)


def tokens_of(seed=0):
    return torch.randint(5, (4, 13), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("component", ["L1H2", "L2", "W_K2", "FF1", "embed", "L2H1->out"])
@pytest.mark.parametrize("kind", ["zero", "mean", "resample", "noise"])
def test_an_ablation_by_hooks_is_that_of_the_table(model, component, kind):
    tokens = tokens_of()
    hooks = im.hooks.ablate(model, component, kind=kind, batch=tokens)
    logits = model.run_with_hooks(tokens[:, :-1], fwd_hooks=hooks)
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    batch = im.source.batch_of_tokens(tokens)
    row = im.ablate(model, tokens, components=[component], kind=kind).set_index("component").loc[component]
    assert row["in_context_loss"] == pytest.approx(loss[batch.in_context].mean().item(), rel=1e-4)
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_patch_clamp_edit_and_record(model):
    tokens, others = tokens_of()[:, :-1], tokens_of(1)[:, :-1]
    clean, other = record(model, tokens), record(model, others)
    where = torch.zeros_like(tokens, dtype=torch.bool)
    where[:, 3] = True
    by_hooks = model.run_with_hooks(tokens, fwd_hooks=im.hooks.patch(model, "L1H1", tokens=others, where=where))
    (patched,) = clean.patched_logits([[Patch("L1H1", other.at("L1H1"), where)]])
    torch.testing.assert_close(by_hooks, patched, atol=1e-5, rtol=1e-5)
    vector = torch.arange(16.0)
    clamped = model.run_with_hooks(tokens, fwd_hooks=im.hooks.clamp(model, "L2H2", vector))
    (held,) = clean.patched_logits([[Patch("L2H2", vector[None, None])]])
    torch.testing.assert_close(clamped, held, atol=1e-5, rtol=1e-5)
    doubled = model.run_with_hooks(tokens, fwd_hooks=im.hooks.edit(model, "L2H1.v", lambda v: 2 * v))
    (twice,) = clean.patched_logits([[Patch("L2H1.v", 2 * clean.at("L2H1.v"))]])
    torch.testing.assert_close(doubled, twice, atol=1e-5, rtol=1e-5)
    hooks, kept = im.hooks.record(model, ["L1H2", "L2H1.k", "FF2"])
    model.run_with_hooks(tokens, fwd_hooks=hooks)
    for site, value in kept.items():
        torch.testing.assert_close(value, clean.at(site), atol=1e-5, rtol=1e-5)
    assert set(kept) == {"L1H2", "L2H1.k", "FF2"}


def test_they_combine_with_hooks_of_ones_own(model):
    tokens = tokens_of()[:, :-1]
    mine = ("blocks.0.hook_mlp_out", lambda value, hook: 0 * value)
    hooks = im.hooks.clamp(model, "L1H1", 0.0)
    together = model.run_with_hooks(tokens, fwd_hooks=[*hooks, mine])
    clean = record(model, tokens)
    (expected,) = clean.patched_logits([[Patch("L1H1", torch.zeros(1, 1, 16)), Patch("FF1", torch.zeros(1, 1, 16))]])
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-5)


def test_lists_for_one_head_act_one_after_the_other(model):
    tokens = tokens_of()[:, :-1]
    halved, again = (im.hooks.edit(model, "L1H2", lambda own: own / 2) for _ in range(2))
    hooks, kept = im.hooks.record(model, ["L1H2"])
    clean = record(model, tokens)
    quartered = model.run_with_hooks(tokens, fwd_hooks=[*halved, *again, *hooks])
    torch.testing.assert_close(kept["L1H2"], clean.at("L1H2") / 4, atol=1e-6, rtol=1e-5)
    (expected,) = clean.patched_logits([[Patch("L1H2", clean.at("L1H2") / 4)]])
    torch.testing.assert_close(quartered, expected, atol=1e-5, rtol=1e-5)
    once = model.run_with_hooks(tokens, fwd_hooks=halved)
    assert not torch.allclose(once, quartered)


def test_an_edge_needs_the_flag_that_splits_the_inputs(model):
    with pytest.raises(InputError, match="use_split_qkv_input"):
        im.hooks.clamp(model, "L1H1->L2H1.k", 0.0)
    model.set_use_split_qkv_input(True)
    tokens = tokens_of()[:, :-1]
    (expected,) = record(model, tokens).patched_logits([[Patch("L1H1->L2H1.k", torch.zeros(1, 1, 16))]])
    by_hooks = model.run_with_hooks(tokens, fwd_hooks=im.hooks.clamp(model, "L1H1->L2H1.k", 0.0))
    torch.testing.assert_close(by_hooks, expected, atol=1e-5, rtol=1e-5)


def test_a_kind_of_ones_own_stands_in_the_table_by_name_or_as_a_function(model, monkeypatch):
    monkeypatch.setattr("induction_memory.interventions.ablations._KINDS", {})

    @im.interventions.register("median")
    def median(run, site):
        return run.at(site).median(-2, keepdim=True).values

    def nothing(run, site):
        return 0 * run.at(site)

    table = im.ablate(model, tokens_of(), heads=["L1H1"], kind=["median", median, nothing])
    assert table["kind"].tolist() == ["none", "median", "median", "nothing"]
    assert table["kl"][1] == table["kl"][2]
    batch = im.source.batch_of_tokens(tokens_of())
    clean = record(model, batch.tokens)
    value = clean.at("L1H1").median(-2, keepdim=True).values
    (logits,) = clean.patched_logits([[Patch("L1H1", value)]])
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
    assert table["in_context_loss"][1] == pytest.approx(loss[batch.in_context].mean().item(), rel=1e-4)
    with pytest.raises(InputError, match="kind: expected values of shape"):
        im.ablate(model, tokens_of(), heads=["L1H1"], kind=lambda run, site: run.at(site)[0])
