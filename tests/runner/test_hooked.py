"""The definition: what each patch does, against hooks written by hand, on models that the fast path does not know."""

import logging

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from induction_memory.errors import InputError
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner import choice
from induction_memory.runner.choice import record, runner
from induction_memory.runner.recording import Patch

SIZES = {"n_layers": 2, "d_model": 16, "n_ctx": 12, "d_head": 8, "n_heads": 2, "d_mlp": 32, "d_vocab": 11, "seed": 0}
FOREIGN = {
    "norm of queries and keys": {"use_qk_norm": True},
    "clipped queries, keys and values": {"clip_qkv": 0.05},
    "attention sinks": {"use_attention_sinks": True},
    "grouped keys and values": {"n_heads": 4, "d_head": 4, "n_key_value_heads": 2},
    "capped scores and logits": {"attn_scores_soft_cap": 0.5, "output_logits_soft_cap": 0.5},
    "attention in both directions": {"attention_dir": "bidirectional"},
    "local attention": {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
    "alibi": {"positional_embedding_type": "alibi"},
    "shortformer": {"positional_embedding_type": "shortformer"},
}


def model_of(**changes):
    torch.manual_seed(0)
    model = HookedTransformer(
        HookedTransformerConfig(**SIZES | {"act_fn": "gelu", "normalization_type": "LN"} | changes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def tokens_of(seed):
    return torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(seed))


def turned(name):
    """A hook of the user's, as a permanent one."""

    def hook(value, hook):
        return value.flip(-1)

    return name, hook


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_that_the_shortcut_does_not_know_takes_the_hooks_and_is_exact(name):
    model = model_of(**FOREIGN[name])
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    assert clean.runner.via == "hooks"
    torch.testing.assert_close(clean.logits, model(tokens_of(0)), atol=1e-5, rtol=1e-5)
    everything = [Patch(edge, other.at(edge.split("->")[0])) for edge in clean.graph.edges]
    heads = [Patch(head, clean.at(head)) for head in clean.graph.heads]
    embeddings = [Patch(name, other.at(name)) for name in ("embed", "pos")[: 1 + clean.graph.positions]]
    whole, same, by_embedding = clean.patched_logits([everything, heads, embeddings])
    if name != "shortformer":  # its positions are no part of the stream, and the same in both runs
        torch.testing.assert_close(whole, other.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(same, clean.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(by_embedding, other.logits, atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="the fast path does not support this model"):
        runner(model, via="fast")


def test_each_site_is_patched_where_a_hook_by_hand_would():
    model, tokens = model_of(normalization_type=None, act_fn="relu"), tokens_of(0)
    clean = runner(model, via="hooks").record(tokens)
    _, cache = model.run_with_cache(tokens)
    value = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(1))
    wide = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(2))
    W_O, W_K, b_K = model.W_O[0, 1], model.W_K[1, 0], model.b_K[1, 0]

    def one_head(head, new):
        def hook(own, hook):
            own = own.clone()
            own[:, :, head] = new(own[:, :, head]) if callable(new) else new
            return own

        return hook

    own = cache["blocks.0.attn.hook_z"][:, :, 1] @ W_O
    by_hand = {
        "L2H1.k": (value, [("blocks.1.attn.hook_k", one_head(0, value))]),
        "L1H2": (wide, [("blocks.0.hook_attn_out", lambda out, hook: out + wide - own)]),
        "L1H2->L2H1.k": (wide, [("blocks.1.attn.hook_k", one_head(0, lambda k: k + (wide - own) @ W_K))]),
        "FF1": (wide, [("blocks.0.hook_mlp_out", lambda out, hook: wide)]),
        "FF1->out": (
            wide,
            [("blocks.1.hook_resid_post", lambda x, hook: x + wide - cache["blocks.0.hook_mlp_out"])],
        ),
        "embed->FF2": (
            wide,
            [
                (
                    "blocks.1.mlp.hook_pre",
                    lambda pre, hook: pre + (wide - cache["hook_embed"]) @ model.blocks[1].mlp.W_in,
                )
            ],
        ),
    }
    assert b_K.shape == (8,)
    for site, (patched_with, hooks) in by_hand.items():
        (got,) = clean.patched_logits([[Patch(site, patched_with)]])
        expected = model.run_with_hooks(tokens, fwd_hooks=hooks)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4, msg=lambda m, s=site: f"{s}: {m}")


@pytest.mark.parametrize(
    "point",
    [
        "hook_embed",
        "blocks.0.hook_resid_pre",
        "blocks.0.attn.hook_z",
        "blocks.0.attn.hook_pattern",
        "blocks.0.hook_attn_out",
        "blocks.0.hook_mlp_out",
        "blocks.1.mlp.hook_post",
        "blocks.1.hook_resid_post",
        "ln_final.hook_normalized",
    ],
)
def test_a_users_hook_counts_wherever_it_sits_and_stays(point):
    model, tokens = model_of(), tokens_of(0)
    without = model(tokens)
    model.add_perma_hook(*turned(point))
    expected = model(tokens)
    assert not torch.allclose(without, expected, atol=1e-3)
    clean = record(model, tokens)
    torch.testing.assert_close(clean.logits, expected, atol=1e-5, rtol=1e-5)
    assert clean.graph.allows("L1H1->L2H1.q") == (point not in ("blocks.0.hook_attn_out", "blocks.1.hook_resid_post"))
    sites = [site for site in ("L1H1", "L1H1->L2H1.q") if clean.graph.allows(site)]
    (unpatched,) = clean.patched_logits([[Patch(site, clean.at("L1H1")) for site in sites]])
    torch.testing.assert_close(unpatched, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(tokens), expected)
    assert len(model.hook_dict[point].fwd_hooks) == 1


@pytest.mark.parametrize("point", ["blocks.0.attn.hook_result", "blocks.0.hook_q_input", "blocks.1.hook_mlp_in"])
def test_a_users_hook_at_a_point_that_does_not_run_stays_asleep(point):
    model, tokens = model_of(), tokens_of(0)
    expected = model(tokens)
    model.hook_dict[point].add_hook(turned(point)[1])
    torch.testing.assert_close(model(tokens), expected)
    clean = record(model, tokens)
    edges = [Patch(edge, clean.at("L1H1")) for edge in ("L1H1->L2H1.q", "L1H1->FF2")]
    torch.testing.assert_close(clean.patched_logits([edges])[0], expected, atol=1e-5, rtol=1e-5)
    assert len(model.hook_dict[point].fwd_hooks) == 1
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    model.set_use_hook_mlp_in(True)
    awake = model(tokens)
    assert not torch.allclose(awake, expected, atol=1e-3)
    torch.testing.assert_close(record(model, tokens).logits, awake, atol=1e-5, rtol=1e-5)


def test_flags_hooks_and_weights_are_as_they_were_even_after_an_exception(unchecked):
    model, tokens = model_of(), tokens_of(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    clean = runner(model, via="hooks").record(tokens, {"embed.W_E": torch.zeros(11, 16)})
    assert not clean.at("embed").any()
    clean.patched_logits([[Patch("L1H1->L2H1.k", torch.zeros(1, 1, 16))]])
    with pytest.raises(RuntimeError):
        clean.patched_logits([[Patch("L1H1", torch.zeros(1, 1, 7))]])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(hook.fwd_hooks for hook in model.hook_dict.values())
    flags = (model.cfg.use_attn_result, model.cfg.use_split_qkv_input, model.cfg.use_hook_mlp_in)
    assert not any(flags)


def test_a_replaced_forward_is_followed():
    model, tokens = model_of(), tokens_of(0)
    before = model(tokens)
    attention = model.blocks[0].attn
    own = attention.forward
    attention.forward = lambda *given, **named: 0.5 * own(*given, **named)
    assert not torch.allclose(model(tokens), before, atol=1e-3)
    clean = record(model, tokens)
    assert clean.runner.via == "hooks"
    torch.testing.assert_close(clean.logits, model(tokens), atol=1e-5, rtol=1e-5)


def test_a_feed_forward_without_weights_counts_as_one():
    model, tokens = model_of(), tokens_of(0)
    model.blocks[1].mlp = torch.nn.Tanh()
    model.setup()
    clean, other = record(model, tokens), record(model, tokens_of(1))
    assert clean.graph.feed_forwards == (1, 2)
    torch.testing.assert_close(clean.logits, model(tokens), atol=1e-5, rtol=1e-5)
    everything = [Patch(edge, other.at(edge.split("->")[0])) for edge in clean.graph.edges if "->FF2" in edge]
    everything += [Patch(edge, other.at(edge.split("->")[0])) for edge in clean.graph.edges if edge.endswith("->out")]
    torch.testing.assert_close(clean.patched_logits([everything])[0], other.logits, atol=1e-4, rtol=1e-4)


def test_a_model_with_fewer_blocks_than_its_configuration_says_is_refused():
    model = model_of()
    del model.blocks[1]
    with pytest.raises(InputError, match="model: expected 2 blocks, as its configuration says, got 1"):
        runner(model)


def test_norms_after_a_component_leave_no_single_edges_from_it():
    model = model_of(use_normalization_before_and_after=True, normalization_type="RMS")
    clean, other = (record(model, tokens_of(seed)) for seed in (0, 1))
    torch.testing.assert_close(clean.logits, model(tokens_of(0)), atol=1e-5, rtol=1e-5)
    assert not any(edge.startswith("L") for edge in clean.graph.edges)
    with pytest.raises(InputError, match="heads write changes before it is added to the stream"):
        clean.graph.resolve("L1H1->L2H1.k")
    with pytest.raises(InputError, match="heads write changes before it is added to the stream"):
        clean.graph.resolve("stream2")
    (patched,) = clean.patched_logits([[Patch(name, other.at(name)) for name in ("embed", "pos")]])
    torch.testing.assert_close(patched, other.logits, atol=1e-4, rtol=1e-4)


def test_why_the_hooks_are_taken_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(choice, "_said", set())
    model = model_of(clip_qkv=0.05)
    with caplog.at_level(logging.WARNING, logger="induction_memory"):
        record(model, tokens_of(0))
        record(model, tokens_of(1))
        runner(build(ModelConfig.simplified(d_model=16, n_ctx=12, d_vocab=11)))
    (line,) = caplog.messages
    assert "clip_qkv is 0.05" in line
    assert "hooks" in line


def test_a_bridge_runs_by_the_names_it_shares():
    bridge = TransformerBridge.boot_native(TransformerBridgeConfig(**SIZES, act_fn="gelu", normalization_type="LN"))
    tokens = tokens_of(0)
    clean, other = (record(bridge, tokens_of(seed), via="hooks") for seed in (0, 1))
    torch.testing.assert_close(clean.logits, bridge(tokens), atol=1e-5, rtol=1e-5)
    (embedding, heads) = clean.patched_logits(
        [[Patch("embed", other.at("embed"))], [Patch(head, clean.at(head)) for head in clean.graph.heads]]
    )
    torch.testing.assert_close(embedding, other.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(heads, clean.logits, atol=1e-4, rtol=1e-4)
    to_output = [Patch(edge, other.at(edge.split("->")[0])) for edge in clean.graph.edges if edge.endswith("->out")]
    torch.testing.assert_close(clean.patched_logits([to_output])[0], other.logits, atol=1e-4, rtol=1e-4)
    bridge.add_perma_hook("blocks.0.attn.hook_z", turned("")[1])
    expected = bridge(tokens)
    hooked = record(bridge, tokens)
    torch.testing.assert_close(hooked.logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hooked.patched_logits([[]])[0], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(bridge(tokens), expected)
    (edge,) = hooked.patched_logits([[Patch("L1H1->L2H1.k", hooked.at("L1H1"))]])
    torch.testing.assert_close(edge, expected, atol=1e-5, rtol=1e-5)
    bridge.add_perma_hook("blocks.1.attn.hook_k", lambda k, hook: k * k)
    with pytest.raises(InputError, match="the k of layer 2 are not computed from the stream, or not linearly"):
        record(bridge, tokens).patched_logits([[Patch("L1H1->L2H1.k", hooked.at("L1H1"))]])


def test_something_that_is_no_model_is_refused(unchecked):
    with pytest.raises(InputError, match="model: expected a HookedTransformer"):
        runner(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="via: expected"):
        runner(model_of(), via="sideways")
