"""Recall through hooks agrees with the weight algebra where that applies, and with slow formulas elsewhere."""

import math

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.memory import recall
from induction_memory.model.associations import associate
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig

SIZES = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_head": 8, "n_ctx": 12, "d_vocab": 7, "d_mlp": 24, "seed": 0}


def close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_paper_s_memories_come_out_of_the_model_s_own_modules(layer_norm):
    model = build(ModelConfig(d_model=16, n_ctx=6, d_vocab=7, layer_norm=layer_norm), seed=3)
    keys = im.hooks.written(model, "L1H1", model.W_E)
    scores = im.hooks.attention_scores(model, "L2H1", keys, model.W_E)
    by_weights = associate(model, "W_K2_normed" if layer_norm else "W_K2")
    close(scores * math.sqrt(16), by_weights.scores[0, 0, 0])
    ideal = torch.eye(7)
    found = recall(im.hooks.as_association("W_K2", scores, ideal, given="output"))
    assert found.item() == recall(by_weights).item()
    logits = im.hooks.output_logits(model, "L2H1", model.W_E).T
    stored = associate(model, "W_O2").scores[0, 0]
    if layer_norm:  # each input has a norm of its own, which changes no argmax over outputs
        assert torch.equal(logits.argmax(0), stored.argmax(0))
    else:
        close(logits, stored)
        close(im.hooks.output_logits(model, "FF2", model.W_E), model.W_E @ model.blocks[1].mlp.W_F @ model.W_U)


def test_positional_keys_are_recalled_at_their_distance():
    model = build(ModelConfig(d_model=16, n_ctx=6, d_vocab=7), seed=3)
    p = model.W_pos
    scores = im.hooks.attention_scores(model, "L1H1", p, p[1:], distance=3)
    close(scores * math.sqrt(16), p[1:] @ model.W_K[0, 0].T @ p.T)


def test_rotary_positions_norms_and_biases_are_in_the_scores():
    model = HookedTransformer(
        HookedTransformerConfig(**SIZES, act_fn="gelu", positional_embedding_type="rotary", rotary_dim=8)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    keys, queries = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    scores = im.hooks.attention_scores(model, "L2H2", keys, queries, distance=4)
    attn, norm = model.blocks[1].attn, model.blocks[1].ln1
    for i in range(5):
        for j in range(5):
            k = torch.zeros(1, 5, 2, 8)
            q = torch.zeros(1, 5, 2, 8)
            k[0, 0, 1] = norm(keys[None, i : i + 1])[0, 0] @ attn.W_K[1] + attn.b_K[1]
            q[0, 4, 1] = norm(queries[None, j : j + 1])[0, 0] @ attn.W_Q[1] + attn.b_Q[1]
            score = (attn.apply_rotary(q)[0, 4, 1] * attn.apply_rotary(k)[0, 0, 1]).sum() / math.sqrt(8)
            assert scores[j, i].item() == pytest.approx(score.item(), abs=1e-4)


def test_a_bridge_gives_the_formula_of_its_own_weights():
    model = TransformerBridge.boot_native(TransformerBridgeConfig(**SIZES, act_fn="gelu", normalization_type="LN"))
    rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    block = model.blocks[1]
    normed = torch.nn.functional.layer_norm(rows, (16,), block.ln1.w, block.ln1.b, 1e-5)
    q, k = (normed @ getattr(block.attn, f"W_{x}")[1] + getattr(block.attn, f"b_{x}")[1] for x in "QK")
    close(im.hooks.attention_scores(model, "L2H2", rows, rows), q @ k.T / math.sqrt(8))
    v = normed @ block.attn.W_V[0] + block.attn.b_V[0]
    close(im.hooks.written(model, "L2H1", rows), v @ block.attn.W_O[0])
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_mistakes_are_one_line():
    model = build(ModelConfig(d_model=16, n_ctx=6, d_vocab=7))
    with pytest.raises(InputError, match=r"keys: expected rows of d_model = 16 numbers, got \(2, 3\)"):
        im.hooks.attention_scores(model, "L1H1", torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(InputError, match=r"distance: expected 1 to 5, got 6"):
        im.hooks.attention_scores(model, "L1H1", model.W_E, model.W_E, distance=6)
    with pytest.raises(InputError, match=r"writer: expected one of L1H1, L2H1, FF2, got 'embed'"):
        im.hooks.written(model, "embed", model.W_E)
