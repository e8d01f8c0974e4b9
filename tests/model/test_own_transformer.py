"""The model for TransformerLens 4 beside the HookedTransformer of 3.9: the same names, numbers and hooks."""

from dataclasses import fields

import pytest
import torch

from induction_memory.model import building as build_module
from induction_memory.model import own_transformer
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig

SIZES = {"d_vocab": 9, "n_ctx": 8, "d_model": 8}
CONFIGS = {
    "simplified": ModelConfig.simplified(**SIZES),
    "heads and norms": ModelConfig(**SIZES, n_heads=2, identity_queries=False, layer_norm=True, feed_forward="relu"),
    "attention alone": ModelConfig(**SIZES, n_heads=2, identity_queries=False, feed_forward="none"),
    "parallel": ModelConfig(
        **SIZES, identity_queries=False, layer_norm=True, feed_forward="relu", parallel_blocks=True
    ),
}
TOKENS = torch.arange(16).reshape(2, 8) % 9

pytestmark = pytest.mark.skipif(
    build_module.HookedTransformer is own_transformer.HookedTransformer, reason="TransformerLens 4 has no other model"
)


@pytest.fixture(params=CONFIGS)
def pair(request, monkeypatch, unchecked):  # `build` says that it returns the class of 3.9
    config = CONFIGS[request.param]
    theirs = build(config, seed=1)
    monkeypatch.setattr(build_module, "HookedTransformer", own_transformer.HookedTransformer)
    monkeypatch.setattr(build_module, "HookedTransformerConfig", own_transformer.HookedTransformerConfig)
    ours = build(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # biases too
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            a.copy_(a + 0.1 * torch.randn(a.shape, generator=generator))
            b.copy_(a)
    return ours, theirs


def test_parameters_and_hooks_have_the_same_names(pair):
    ours, theirs = pair
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert [p.requires_grad for p in ours.parameters()] == [p.requires_grad for p in theirs.parameters()]
    assert set(ours.hook_dict) == set(theirs.hook_dict)
    for field in fields(ours.cfg):
        assert getattr(ours.cfg, field.name) == getattr(theirs.cfg, field.name), field.name
    assert torch.equal(ours.W_Q, theirs.W_Q)


def test_activations_and_gradients_are_the_same(pair):
    ours, theirs = pair
    mine, theirs_cache = (model.run_with_cache(TOKENS)[1] for model in pair)
    for name in mine:
        torch.testing.assert_close(mine[name], theirs_cache[name], rtol=0, atol=1e-6)
    for model in pair:
        model(TOKENS, return_type="loss").backward()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("flag", ["use_attn_result", "use_split_qkv_input", "use_attn_in"])
def test_flags_bring_the_same_hook_points_to_life(pair, flag):
    point = {"use_attn_result": "attn.hook_result", "use_attn_in": "hook_attn_in"}.get(flag, "hook_k_input")
    found = []
    for model in pair:
        getattr(model, f"set_{flag}")(True)
        hook = (f"blocks.1.{point}", lambda value, hook: value * 0.5)
        found.append(model.run_with_hooks(TOKENS, fwd_hooks=[hook]))
        assert not torch.allclose(found[-1], model(TOKENS))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_moving_takes_what_callers_of_the_other_pass_and_the_configuration_follows(pair):
    for model in pair:
        assert model.to("cpu", print_details=False) is model
        assert torch.device(model.cfg.device) == torch.device("cpu")
        model.to(torch.float64, print_details=False)
        assert (model.cfg.dtype, model.W_E.dtype) == (torch.float64, torch.float64)
