"""The fast training path takes only what `build` made; everything else goes the reference way, and says so."""

import logging
from dataclasses import replace

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from induction_memory.model.building import build, departure
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng
from induction_memory.training import forward
from induction_memory.training.evaluation import plain_evaluate
from induction_memory.training.forward import evaluate, supported

SIZES = {"d_model": 16, "n_ctx": 16}
MODELS = [
    ModelConfig(**SIZES),
    ModelConfig(**SIZES, feed_forward="none"),
    ModelConfig.full(**SIZES, n_heads=2, layer_norm=True),
    ModelConfig.full(**SIZES, tied_output=True, parallel_blocks=True),
]


@pytest.mark.parametrize("config", MODELS, ids=lambda c: f"{c.feed_forward}-{c.n_heads}")
def test_a_model_as_built_is_taken_and_may_be_used_before(config):
    model = build(config, seed=1)
    model(torch.zeros(1, 4, dtype=torch.int64))
    model.run_with_cache(torch.zeros(1, 4, dtype=torch.int64))
    assert departure(model) is None
    assert departure(model.train()) is None
    assert supported(model) is None


def _replace_activation(model):
    model.blocks[0].mlp.act_fn = torch.tanh


def _replace_forward(model):
    model.blocks[1].attn.forward = lambda query_input, **more: torch.zeros_like(query_input)


def _scale(model):
    model.blocks[0].attn.attn_scale = 1.0


def _mask(model):
    model.blocks[0].attn.IGNORE = torch.tensor(0.0)


def _hook(model):
    model.add_perma_hook("blocks.0.hook_resid_post", lambda x, hook: 2 * x)


def _direction(model):
    model.blocks[0].attn._attention_dir_override = "bidirectional"


def _own_settings(model):
    model.blocks[0].cfg = replace(model.cfg, parallel_attn_mlp=True)


def _norm(model):
    model.ln_final = torch.nn.LayerNorm(16)


CHANGES = {
    "blocks.0.mlp has another act_fn": _replace_activation,
    "blocks.1.attn has another forward": _replace_forward,
    "blocks.0.attn has another attn_scale": _scale,
    "blocks.0.attn has another IGNORE": _mask,
    "blocks.0.hook_resid_post has hooks": _hook,
    "blocks.0.attn has another _attention_dir_override": _direction,
    "blocks.0 has a different configuration": _own_settings,
    "cfg.use_qk_norm is True, not False": lambda model: setattr(model.cfg, "use_qk_norm", True),
    "cfg.attn_scores_soft_cap is 2.0, not -1.0": lambda model: setattr(model.cfg, "attn_scores_soft_cap", 2.0),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_a_model_changed_after_it_was_built_is_evaluated_by_its_own_forward(reason, caplog):
    model = build(ModelConfig.full(**SIZES), seed=2)
    batch = sample(BigramTask(length=16, k=3), 8, step_rng(0, 0))
    before = evaluate(model, batch, "all")
    CHANGES[reason](model)
    assert supported(model) == reason
    if reason.startswith("cfg.use_qk_norm"):
        return  # TransformerLens itself cannot run it: the modules are not there
    forward._said.clear()
    with caplog.at_level(logging.WARNING, logger="induction_memory"):
        found = evaluate(model, batch, "all")
        evaluate(model, batch, "all")
    assert caplog.text.count(reason) == 1
    assert found.loss == plain_evaluate(model, batch, "all").loss
    assert found.loss != before.loss


def test_a_hook_at_every_module_of_torch_counts():
    model, batch = build(ModelConfig.full(**SIZES), seed=2), sample(BigramTask(length=16, k=3), 8, step_rng(0, 0))
    before, double = evaluate(model, batch, "all"), type(model.blocks[0].attn)
    hook = register_module_forward_hook(lambda module, _, out: 2 * out if type(module) is double else None)
    try:
        assert supported(model) == "torch has a global hook on every module"
        assert evaluate(model, batch, "all").loss == plain_evaluate(model, batch, "all").loss != before.loss
    finally:
        hook.remove()


def test_a_replaced_module_is_named():
    model = build(ModelConfig.full(**SIZES, layer_norm=True), seed=3)
    _norm(model)
    reason = departure(model)
    assert reason is not None
    assert "ln_final" in reason


def test_an_unknown_feed_forward_is_refused_by_every_reader(unchecked):
    config = ModelConfig(**SIZES)
    object.__setattr__(config, "feed_forward", "gelu")
    for read in (lambda: config.parameters, lambda: build(config)):
        with pytest.raises(AssertionError):
            read()
