"""Every kind of call on a model on another device: nothing is made on the CPU on the way, and the numbers are the same.

The other device is the disguise of `tests/elsewhere.py`; no test here has run on real hardware.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import quantization

import induction_memory as im
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.interventions.circuits import discover
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.training.evaluation import plain_evaluate
from induction_memory.training.forward import evaluate
from induction_memory.training.loop import train
from tests.elsewhere import Elsewhere, MadeThere, elsewhere

pytestmark = pytest.mark.slow
TASK = im.BigramTask(length=12, k=2)
SIZES = {"d_model": 16, "n_ctx": 12, "d_vocab": TASK.n_inputs}
MODELS = {
    "simplified": ModelConfig(**SIZES),
    "full": ModelConfig.full(**SIZES, n_heads=2, layer_norm=True),
    "tied": ModelConfig.full(**SIZES, tied_output=True),
}
PROBES = ["W_K1", "W_O2", "previous_token_mass1", "induction_mass2", "mass_on_induction2", "loss_in_context"]
PROBES += ["kl_to_bayes", "dla_token", "repeated_previous1"]
BATCH = im.sample(TASK, 6, im.task.step_rng(0, 0))


def streamed(model):
    """Recall through hooks: keys that a head wrote, scores and logits."""
    tokens = model.embed.W_E
    keys = im.hooks.written(model, "L1H1", tokens)
    found = im.hooks.attention_scores(model, "L2H1", keys, tokens), im.hooks.output_logits(model, "L2H1", tokens)
    return pd.DataFrame(torch.cat([x.detach().cpu().flatten() for x in found]).numpy())


def series_tables(model):
    """Head scores and ablations of a series of models in memory."""
    scores = im.probes.table(im.revisions([(0, model), (5, model)]), batch=BATCH)
    ablated = im.ablate(im.revisions([(0, model)]), BATCH.tokens, heads="all", kind="mean", step="all")
    return pd.concat([scores[["value"]], ablated[["kl"]].rename(columns={"kl": "value"})], ignore_index=True)


CALLS = {
    "ablation, engine": lambda model: im.ablate(model, BATCH, kind="mean", via="fast"),
    "ablation, hooks": lambda model: im.ablate(model, BATCH, kind="mean", via="hooks", components=["heads"]),
    "ablation, every kind": lambda model: im.ablate(model, BATCH, kind="all", components=["L1"]),
    "patching": lambda model: im.patch(model, task=TASK),
    "patching, paths": lambda model: im.patch(model, task=TASK, kind="path"),
    "probes": lambda model: im.probes.table(model, PROBES, task=TASK, batch=BATCH),
    "head scores": lambda model: im.probes.head_scores(model, length=5),
    "roles": lambda model: im.heads.identify(model, batch=BATCH).votes,
    "recall through hooks": streamed,
    "maps": lambda model: pd.DataFrame(np.asarray(im.attention(model, batch=BATCH).patterns).reshape(-1, 12)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["simplified", "full"])
def test_analyses_are_the_same_elsewhere(call, kind):
    here = CALLS[call](build(MODELS[kind]))
    with MadeThere():
        there = CALLS[call](elsewhere(build(MODELS[kind])))
    pd.testing.assert_frame_equal(there, here, check_exact=False, rtol=1e-5, atol=1e-6)


DISCOVERY = {"random_orders": 1, "sizes": [1, 2]}
ON_BRIDGES = ["ablation, hooks", "patching", "head scores", "roles", "recall through hooks", "maps"]


def test_circuits_are_the_same_elsewhere():
    """Exact effects alone: the disguise loses gradients of fused attention."""
    here = discover(build(MODELS["full"]), BATCH, rankings=["exact"], **DISCOVERY)
    with MadeThere():
        there = discover(elsewhere(build(MODELS["full"])), BATCH, rankings=["exact"], **DISCOVERY)
    pd.testing.assert_frame_equal(there.edges, here.edges, check_exact=False, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call", [*ON_BRIDGES, "series", "circuits"])
def test_analyses_of_a_bridge_are_the_same_elsewhere(call, monkeypatch):
    monkeypatch.setattr(quantization, "unreadable_weight_reason", lambda weight: None)  # it refuses the device `meta`
    made = CALLS.get(call, series_tables if call == "series" else None)
    made = made or (lambda model: discover(model, BATCH, task=TASK, via="hooks", **DISCOVERY).edges)
    here = made(bridge())
    with MadeThere():
        there = made(elsewhere(bridge()))
    pd.testing.assert_frame_equal(there, here, check_exact=False, rtol=1e-4, atol=1e-5)


def bridge():
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_head": 8, "n_ctx": 12, "d_vocab": TASK.n_inputs}
    settings = TransformerBridgeConfig(**sizes, d_mlp=24, act_fn="gelu", normalization_type="LN", seed=0)
    return TransformerBridge.boot_native(settings)


@pytest.mark.parametrize("loss", ["all", "main"])
@pytest.mark.parametrize("kind", ["simplified", "full"])
@pytest.mark.parametrize("path", [evaluate, plain_evaluate])
def test_losses_and_gradients_are_the_same_elsewhere(path, kind, loss):
    here = evaluate(build(MODELS[kind]), BATCH, loss)
    with MadeThere():
        there = path(elsewhere(build(MODELS[kind])), BATCH, loss)
    assert there.loss == pytest.approx(here.loss, rel=1e-5)
    assert isinstance(there.nll, Elsewhere)
    for name, gradient in here.gradients.items():
        found = there.gradients[name]
        assert isinstance(found, Elsewhere), name
        torch.testing.assert_close(found.inner, gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_moves_the_weights_to_the_same_place_elsewhere(optimizer):
    config = TrainConfig(steps=3, batch_size=6, optimizer=optimizer, learning_rate=0.01, loss="all")
    last = {}
    for name, place in {"here": lambda model: model, "there": elsewhere}.items():
        with MadeThere():
            for snapshot in train(TASK, place(build(MODELS["simplified"])), config):
                last[name] = snapshot
    assert last["there"].metrics.loss == pytest.approx(last["here"].metrics.loss, rel=1e-5)
    with MadeThere():
        there = last["there"].parameters()
    for name, weight in last["here"].parameters().items():
        torch.testing.assert_close(there[name], weight, rtol=1e-4, atol=1e-6, msg=name)
    assert not torch.equal(there["blocks.1.attn.W_O"], build(MODELS["simplified"]).blocks[1].attn.W_O)


def test_a_tied_output_that_was_moved_is_refused_until_it_is_tied_again():
    moved = elsewhere(build(MODELS["tied"]))
    for value in moved.parameters():
        value.inner = value.inner.clone()
    with MadeThere(), pytest.raises(im.errors.InputError, match="a copy"):
        evaluate(moved, BATCH, "all")
