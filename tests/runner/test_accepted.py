"""The shortcut accepts what it computes exactly, by a complete list, and equals the hooks on all of it."""

from dataclasses import fields

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.layer_norm_pre import LayerNormPre

from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner import support
from induction_memory.runner.choice import runner
from induction_memory.runner.recording import Patch
from induction_memory.runner.support import objection

SIZES = {"n_layers": 2, "d_model": 16, "n_ctx": 12, "d_head": 8, "n_heads": 2, "d_mlp": 32, "d_vocab": 11, "seed": 0}
ACCEPTED = {
    "gelu": {"act_fn": "gelu"},
    "no norm, no scale, another output": {"normalization_type": None, "use_attn_scale": False, "d_vocab_out": 7},
    "scale by layer": {"scale_attn_by_inverse_layer_idx": True},
    "LayerNorm in the activation": {"act_fn": "solu_ln"},
    "gated": {"gated_mlp": True, "act_fn": "silu", "normalization_type": "RMS"},
    "experts": {"num_experts": 3, "experts_per_token": 2, "act_fn": "silu", "normalization_type": "RMSPre"},
    "rotary": {"positional_embedding_type": "rotary", "rotary_dim": 4, "rotary_adjacent_pairs": True},
    "yarn, parallel": {
        "positional_embedding_type": "rotary",
        "rotary_dim": 8,
        "use_yarn_rope": True,
        "yarn_factor": 2.0,
        "parallel_attn_mlp": True,
    },
    "as many keys as heads": {"n_key_value_heads": 2},
    "attention only, folded norm": {"attn_only": True, "normalization_type": "LNPre"},
}


def model_of(**changes):
    settings = SIZES | {"act_fn": "relu", "normalization_type": "LN"} | changes
    model = HookedTransformer(HookedTransformerConfig(**settings))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.2)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCEPTED)
def test_both_runners_give_the_same_on_every_architecture_that_the_shortcut_accepts(name):
    model = model_of(**ACCEPTED[name])
    assert objection(model) is None
    tokens, others = (torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    fast, hooked = (runner(model, via=via).record(tokens) for via in ("fast", "hooks"))
    other = runner(model).record(others)
    torch.testing.assert_close(fast.logits, hooked.logits, atol=1e-4, rtol=1e-4)
    for layer in (1, 2):
        torch.testing.assert_close(fast.pattern(layer), hooked.pattern(layer), atol=1e-5, rtol=1e-4)
    graph = fast.graph
    sites = [*graph.writers, *graph.inputs[:-1], *graph.edges]
    for site in graph.writers:
        torch.testing.assert_close(fast.at(site), hooked.at(site), atol=1e-5, rtol=1e-4)
    variants = [[Patch(site, other.at(site.split("->")[0]))] for site in sites]
    variants += [[Patch(site, fast.at(site).mean((0, 1), keepdim=True))] for site in graph.inputs[:-1] if "." in site]
    queries = torch.tensor([[3, 11]] * 3)
    by_hooks = hooked.patched_logits(variants)
    torch.testing.assert_close(fast.patched_logits(variants), by_hooks, atol=1e-4, rtol=1e-4)
    some = fast.patched_logits(variants, queries=queries)
    torch.testing.assert_close(some, by_hooks[:, :, [3, 11]], atol=1e-4, rtol=1e-4)


NOT_COMPUTED_WITH = {"default_prepend_bos", "init_mode", "init_weights", "initializer_range", "seed", "device"}
NOT_COMPUTED_WITH |= {"model_name", "tokenizer_name", "tokenizer_prepends_bos", "n_params"}


def test_a_field_that_is_not_listed_must_have_its_default():
    names = {field.name for field in fields(HookedTransformerConfig)}
    assert len(set(support.ANY)) == len(support.ANY)
    assert set(support.ANY) < names - NOT_COMPUTED_WITH
    model = model_of()
    for name in sorted(names - set(support.ANY) - NOT_COMPUTED_WITH):
        before = getattr(model.cfg, name)
        setattr(model.cfg, name, "another")
        assert objection(model) == f"cfg.{name} is 'another', not {before!r}"
        setattr(model.cfg, name, before)
    assert objection(model) is None
    model.cfg.brand_new = 1
    assert "brand_new" in objection(model)


@pytest.mark.parametrize("config", [ModelConfig.simplified(), ModelConfig.full(n_heads=4, layer_norm=True)])
def test_the_papers_models_take_the_shortcut(config):
    assert objection(build(config)) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.cfg.__setattr__("use_logn_attn", True), "use_logn_attn is True"),
        (lambda m: m.cfg.__setattr__("original_architecture", "Olmo2ForCausalLM"), "original_architecture"),
        (lambda m: m.cfg.__setattr__("dtype", torch.bfloat16), "dtype"),
        (lambda m: m.add_hook("blocks.1.hook_mlp_out", lambda v, hook: None), "blocks.1.hook_mlp_out has hooks"),
        (lambda m: m.blocks[0].register_forward_pre_hook(lambda *_: None), "blocks.0 has hooks"),
        (lambda m: m.blocks[0].attn.__setattr__("forward", lambda **_: 0), "blocks.0.attn has another forward"),
        (
            lambda m: m.blocks[0].attn.__setattr__("apply_causal_mask", lambda *_: 0),
            "blocks.0.attn has another apply_causal_mask",
        ),
        (
            lambda m: m.blocks[1].__setattr__("mlp", torch.nn.Conv1d(12, 12, 1)),
            "the module blocks.1.mlp.hook_post was taken away",
        ),
        (lambda m: m.blocks[1].attn.__setattr__("_attention_dir_override", "bidirectional"), "_attention_dir_override"),
        (lambda m: m.blocks[0].attn.__setattr__("attn_type", "local"), "blocks.0.attn has another attn_type"),
        (lambda m: m.blocks[0].attn.IGNORE.fill_(-1), "blocks.0.attn has another IGNORE"),
        (lambda m: m.cfg.__setattr__("n_layers", 1), "the module blocks.1 was added"),
        (lambda m: m.blocks.__delitem__(1), "the module blocks.1 was taken away"),
        (
            lambda m: m.blocks[0].__setattr__("mlp", torch.nn.Identity()),
            "the module blocks.0.mlp.hook_post was taken away",
        ),
        (
            lambda m: m.blocks[0].attn.__setattr__("hook_z", torch.nn.Linear(8, 8)),
            "blocks.0.attn.hook_z is a Linear, not a HookPoint",
        ),
        (lambda m: m.half(), "another embed.W_E"),
        (lambda m: m.unembed.__setattr__("b_U", None), "another unembed.b_U"),
        (lambda m: torch.nn.utils.parametrizations.weight_norm(m.blocks[0].attn, "W_O"), "Parametrized"),
    ],
)
def test_what_is_not_on_the_list_is_objected_to(change, reason):
    model = model_of()
    assert objection(model) is None
    change(model)
    assert reason in (objection(model) or "")


@pytest.mark.parametrize("name", ["ln1", "ln2"])
def test_a_norm_in_a_model_that_should_have_none_is_objected_to_and_counts(name):
    model = model_of(normalization_type=None)
    assert objection(model) is None
    setattr(model.blocks[0], name, LayerNormPre(model.cfg))
    model.setup()
    assert objection(model) == f"the module blocks.0.{name}.hook_normalized was added"
    tokens = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(runner(model).record(tokens).logits, model(tokens))


def test_a_class_of_ones_own_is_objected_to():
    class Mine(HookedTransformer):
        pass

    assert objection(Mine(HookedTransformerConfig(**SIZES, act_fn="relu"))) == "it is a Mine"


def test_weights_with_their_configuration_give_what_the_model_gives():
    for config in (
        ModelConfig.simplified(d_model=16, n_ctx=12, d_vocab=11),
        ModelConfig.full(d_model=16, n_ctx=12, d_vocab=11, n_heads=2, layer_norm=True, parallel_blocks=True),
        ModelConfig.simplified(d_model=16, n_ctx=12, d_vocab=11, feed_forward="none", scale_scores=False, n_layers=3),
    ):
        model = build(config, seed=1)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        with torch.no_grad():
            for name in weights:
                if ".b_" in name:
                    weights[name].normal_(generator=torch.Generator().manual_seed(2))
        tokens = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))
        recording, by_hooks = (runner(weights, config, via=via).record(tokens) for via in ("fast", "hooks"))
        torch.testing.assert_close(recording.logits, model(tokens), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(by_hooks.logits, model(tokens), atol=1e-5, rtol=1e-5)
        variants = [[Patch(edge, torch.zeros(1, 1, 16))] for edge in recording.graph.edges]
        expected = runner(model, via="hooks").record(tokens).patched_logits(variants)
        torch.testing.assert_close(recording.patched_logits(variants), expected, atol=1e-4, rtol=1e-4)
        no_biases = {name: weight for name, weight in weights.items() if ".b_" not in name}
        swapped = runner(no_biases, config).record(tokens, {name: weights[name] for name in weights})
        torch.testing.assert_close(swapped.logits, model(tokens), atol=1e-5, rtol=1e-5)
