"""What each matrix associates, against the weights read by hand."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from induction_memory.errors import InputError, UnsupportedError
from induction_memory.memory import Association, recall
from induction_memory.model.associations import Spec, associate, carrier, parameter_of, written
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import construct
from induction_memory.model.memories import Memories, head_names, weights_of
from induction_memory.task.bigrams import BigramTask
from tests.model.test_build import randomised

FIXED = BigramTask(length=12, k=3, triggers="fixed")
SOME = BigramTask(length=12, k=2, trigger_distribution=tuple((k % 2) / 32 for k in range(65)))
CONFIG = ModelConfig.full(d_model=16, n_heads=2, n_ctx=12, layer_norm=True, feed_forward="linear")
MEMORIES = ("W_K1", "W_K2", "W_O2", "W_F")


@pytest.fixture(scope="module")
def model():
    return randomised(CONFIG)


def centred(model, norm, rows):
    """The linear part of a LayerNorm."""
    gain = dict(model.named_parameters())[f"{norm}.w"].detach()
    return (rows - rows.mean(-1, keepdim=True)) * gain


def by_hand(model, memory: str, h: int, g: int) -> torch.Tensor:
    """Scores [output, input] of a memory through layer-1 head h and layer-2 head g, from the model's own parameters."""
    first, second = model.blocks
    w_E, p = model.W_E.detach(), model.W_pos.detach()
    w_U = centred(model, "ln_final", torch.eye(16)) @ model.W_U.detach()
    if memory == "W_K1":
        x = centred(model, "blocks.0.ln1", p)
        return (x[1:] @ first.attn.W_Q[h]) @ (x[:-1] @ first.attn.W_K[h]).T
    remapped = centred(model, "blocks.0.ln1", w_E) @ first.attn.W_V[h] @ first.attn.W_O[h]
    if memory == "W_K2":
        queries, keys = (centred(model, "blocks.1.ln1", x) for x in (w_E, remapped))
        return (queries @ second.attn.W_Q[g]) @ (keys @ second.attn.W_K[g]).T
    if memory == "W_F":
        return (centred(model, "blocks.1.ln2", w_E) @ second.mlp.W_F @ w_U).T
    read = w_E if memory == "W_O2" else remapped
    return (centred(model, "blocks.1.ln1", read) @ second.attn.W_V[g] @ second.attn.W_O[g] @ w_U).T


@pytest.mark.parametrize("memory", [*MEMORIES, "W_O2_spurious"])
def test_scores_are_those_of_the_model_s_own_parameters(model, memory):
    a = associate(model, memory, task=FIXED)
    scores = a.scores[0].reshape(len(a.heads), *a.scores.shape[-2:])
    for table, name in zip(scores, a.heads, strict=True):
        numbers = [int(n[1:].split("H")[1]) - 1 for n in name.split(">")] if name else [0]
        h, g = numbers if len(numbers) == 2 else (numbers[0], numbers[0])
        torch.testing.assert_close(table, by_hand(model, memory, h, g).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_bare_memory_has_the_same_scores_and_can_be_written_back(model, memory):
    weights = weights_of(model)
    for through in ("L1H1", "L1H2"):
        a = associate(model, memory, task=FIXED, bare=True, through=through)
        for g in range(a.scores.shape[1] if memory != "W_F" else 1):
            h = int(through[-1]) - 1 if memory == "W_K2" else g
            here = a.scores[0, g] if memory != "W_F" else a.scores[0]
            torch.testing.assert_close(here, by_hand(model, memory, h, g).detach(), rtol=1e-3, atol=1e-4)
        name = parameter_of(memory, weights)
        torch.testing.assert_close(written(a, weights), {name: weights[name]}, rtol=0, atol=0)
        changed = weights | written(replace(a, W=2 * a.W), weights)
        torch.testing.assert_close(changed[name], 2 * weights[name], rtol=0, atol=0)


def test_stacked_weights_give_every_step(model):
    weights = weights_of(model)
    moving = {"blocks.1.attn.W_K", "embed.W_E", "blocks.1.ln1.w"}
    generator = torch.Generator().manual_seed(0)
    steps = [
        {n: w + torch.randn(w.shape, generator=generator) if n in moving else w for n, w in weights.items()}
        for _ in range(3)
    ]
    stack = {n: torch.stack([s[n] for s in steps]) if n in moving else w for n, w in weights.items()}
    for memory in (*MEMORIES, "W_K2_normed", "W_K1_causal", "W_K2_raw"):
        together = associate(stack, memory, task=FIXED)
        for step, alone in enumerate(steps):
            scores = together.scores.expand(3, *together.scores.shape[1:])[step]
            torch.testing.assert_close(scores, associate(alone, memory, task=FIXED).scores[0], rtol=1e-3, atol=1e-3)
    assert written(associate(stack, "W_K2", task=FIXED, bare=True), stack)["blocks.1.attn.W_K"].shape[0] == 3


@pytest.mark.parametrize(("task", "stored"), [(FIXED, FIXED.fixed_triggers), (SOME, np.arange(1, 65, 2))])
def test_w_k2_stores_the_tokens_that_can_be_triggers_wherever_it_is_read(model, task, stored):
    expected = set(stored.tolist())
    for a in (associate(model, "W_K2", task=task), associate(model, "W_K2", task=task, bare=True)):
        assert {tuple(pair) for pair in a.pairs.tolist()} == {(k, k) for k in expected}
        assert a.targets.tolist() == list(range(65))  # recall asks for every token
    assert set(np.flatnonzero(task.associations()["W_K2"].strength.any(0)).tolist()) == expected
    config = ModelConfig.simplified(d_model=96, n_ctx=12, feed_forward="none")
    built = associate(construct(task, config), "W_K2", task=task).scores[0, 0, 0].diagonal()
    others = [k for k in range(65) if k not in expected]
    assert built[stored.copy()].mean() > 3 * built[others].abs().mean()


def test_without_a_task_every_token_is_an_ideal_pair(model):
    a = associate(model, "W_K2")
    assert len(a.pairs) == 65
    with pytest.raises(UnsupportedError, match="needs the task"):
        associate(model, "W_F")


def test_the_ideal_feed_forward_is_the_same_in_probes_construction_and_surgery(model):
    a = associate(model, "W_F", task=FIXED)
    bare = associate(model, "W_F", task=FIXED, bare=True)
    torch.testing.assert_close(a.ideal, bare.ideal)
    logits = np.log(FIXED.bigram + 0.01)
    expected = logits - logits.mean(1, keepdims=True)
    expected[FIXED.fixed_triggers] = 0
    np.testing.assert_allclose(a.ideal.T, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="one target"):
        recall(a)


def test_windows_and_causal_keys_of_the_previous_token_memory(model):
    whole = associate(model, "W_K1", task=FIXED)
    assert whole.input_names == tuple(range(1, 12))
    assert whole.output_names == tuple(range(2, 13))
    part = associate(model, "W_K1[3:9]", task=FIXED)
    assert (part.name, part.input_names, part.output_names) == ("W_K1[3:9]", (4, 5, 6, 7, 8), (5, 6, 7, 8, 9))
    causal = associate(model, "W_K1_causal", task=FIXED)
    for a in (whole, part, causal):
        pairs = [(a.input_names[i], a.output_names[j]) for i, j in a.pairs.tolist()]
        assert pairs == [(t - 1, t) for t in a.output_names]
    assert causal.candidates.sum(-1).tolist() == list(range(2, 13))
    for window in ("[11:12]", "[11:20]", "[0:13]", "[0:9999999]", "[9:3]"):
        said = f"needs a window of two or more of the 12 positions, got {re.escape(window)}$"
        with pytest.raises(UnsupportedError, match=said):
            associate(model, f"W_K1{window}", task=FIXED)
    assert associate(model, "W_K1[0:12]", task=FIXED).scores.equal(whole.scores)
    assert associate(model, "W_K1_first64", task=FIXED).scores.equal(whole.scores)


def test_the_carrier_is_the_head_whose_keys_the_memory_reads():
    config = ModelConfig.full(d_model=64, n_heads=4, d_head=64, n_ctx=12)
    model = build(config, seed=0)
    keys = Memories(weights_of(model)).embedding("Phi_1 w_E")[0, 2]  # those of L1H3
    queries = model.W_E.detach() @ model.W_Q[1].detach()
    with torch.no_grad():
        model.blocks[1].attn.W_K.copy_(keys.T @ queries / keys.square().sum(-1).mean())
    assert carrier(model) == "L1H3"
    assert carrier(model, head="L2H2") == "L1H3"
    with pytest.raises(InputError, match="head: expected one of L2H1"):
        carrier(model, head="L2H5")


def test_names_are_taken_apart():
    assert Spec.parse("W_K1_first64_causal") == Spec("W_K1", first=64, causal=True)
    assert Spec.parse("W_K2_triggers_raw_reversed") == Spec("W_K2", triggers=True, norm="none", reversed=True)
    for wrong in ("W_K4", "W_O2_causal", "W_K1_triggers", "W_O2_normed", "W_K2_first64", f"W_K1[0:{'9' * 5000}]"):
        assert Spec.parse(wrong) is None
    two_layers = build(ModelConfig.simplified(d_model=8, n_ctx=4))
    with pytest.raises(InputError, match="memory: expected W_K1, W_K2"):
        associate(two_layers, "W_K4")
    for third in ("W_K3", "W_O3"):
        with pytest.raises(UnsupportedError, match="needs 3 layers, the model has 2"):
            associate(two_layers, third)


def test_memories_of_a_third_layer_are_those_of_its_own_parameters():
    """W_K3 reads what layer 2 made of a token: every score, one pair of heads and one token at a time."""
    model = randomised(replace(CONFIG, n_layers=3))
    weights = dict(model.named_parameters())
    w_E, w_U = model.W_E.detach(), centred(model, "ln_final", torch.eye(16)) @ model.W_U.detach()
    second, third = (model.blocks[layer].attn for layer in (1, 2))
    keys, values = associate(model, "W_K3", task=FIXED), associate(model, "W_O3", task=FIXED)
    assert keys.heads == ("L2H1>L3H1", "L2H1>L3H2", "L2H2>L3H1", "L2H2>L3H2")
    assert values.heads == ("L3H1", "L3H2")
    for g in range(2):
        said = centred(model, "blocks.2.ln1", w_E) @ third.W_V[g] @ third.W_O[g] @ w_U
        torch.testing.assert_close(values.scores[0, g], said.T.detach(), rtol=1e-3, atol=1e-4)
        for h in range(2):
            written_by_2 = centred(model, "blocks.1.ln1", w_E) @ second.W_V[h] @ second.W_O[h]
            for k in (0, 7, 64):
                query = centred(model, "blocks.2.ln1", w_E[k]) @ third.W_Q[g]
                scores = (centred(model, "blocks.2.ln1", written_by_2) @ third.W_K[g]) @ query
                torch.testing.assert_close(keys.scores[0, h, g, k], scores.detach(), rtol=1e-3, atol=1e-4)
    assert {tuple(pair) for pair in keys.pairs.tolist()} == {(q, q) for q in FIXED.fixed_triggers.tolist()}
    assert parameter_of("W_K3", weights) == "blocks.2.attn.W_K"


def test_heads_are_named_layer_by_layer():
    assert head_names((), 2) == [""]
    assert head_names((2,), 2) == ["L2H1", "L2H2"]
    assert head_names((1, 2), 2) == ["L1H1>L2H1", "L1H1>L2H2", "L1H2>L2H1", "L1H2>L2H2"]


def test_one_head_is_named_too(model):
    one = build(ModelConfig.simplified(d_model=8, n_ctx=12), seed=0)
    found: list[Association] = [associate(one, memory, task=FIXED) for memory in MEMORIES]
    assert [a.heads for a in found] == [("L1H1",), ("L1H1>L2H1",), ("L2H1",), ("",)]
