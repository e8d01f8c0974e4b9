from dataclasses import replace

import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.memory import Association, kl, matching
from induction_memory.model import memories
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from tests.memory import slow_association as slow
from tests.model.test_build import randomised
from tests.probe_sources import FIXED, RANDOM, TINY, at_step, constructed, stacked, untrained

ATTENTION = tuple(f"blocks.{layer}.attn.{W}" for layer in (0, 1) for W in ("W_Q", "W_K", "W_V", "W_O"))
EMBEDDINGS = ("embed.W_E", "pos_embed.W_pos", "unembed.W_U")
NORMS = tuple(f"{norm}.{x}" for norm in ("blocks.0.ln1", "blocks.1.ln1", "blocks.1.ln2", "ln_final") for x in "wb")
SIMPLE = ModelConfig(d_model=24, n_ctx=16)
FULL = ModelConfig.full(d_model=24, n_ctx=16, n_heads=2, layer_norm=True)
CASES = {
    "simplified": (SIMPLE, ("blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O", "blocks.1.mlp.W_F")),
    "full": (FULL, (*ATTENTION, *EMBEDDINGS, *NORMS, "blocks.1.mlp.W_in", "blocks.1.mlp.W_out")),
    "some embeddings move": (SIMPLE.replace(identity_queries=False, n_heads=3), ("embed.W_E", "blocks.1.attn.W_K")),
}


def loop_recall(model, T: int) -> dict[str, float]:
    """The paper's recalls of one model, an input at a time, a head at a time, from its own weights."""

    def heads(name):
        W = memories.matrix(model, name)
        return W if W.dim() == 3 else W[None]

    p, w_E, w_U = (memories.embedding(model, name) for name in ("p", "w_E", "w_U"))
    found = {}
    many = len(heads("W_K1")) > 1
    for h, W in enumerate(heads("W_K1")):
        label = f"[L1H{h + 1}]" if many else ""
        found[f"W_K1{label}"] = np.mean([wins(p[t] @ W @ p[: T - 1].T, t - 1) for t in range(1, T)])
        found[f"W_K1[3:9]{label}"] = np.mean([wins(p[t] @ W @ p[3:8].T, t - 1 - 3) for t in range(4, 9)])
        found[f"W_K1_causal{label}"] = np.mean([wins(p[t] @ W @ p[: t + 1].T, t - 1) for t in range(1, T)])
    for g, W in enumerate(heads("W_K2")):
        for h, Phi_1 in enumerate(heads("Phi_1")):
            keys = w_E @ Phi_1.T
            recalled = [wins(w_E[k] @ W @ keys.T, k) for k in range(len(w_E))]
            found[f"W_K2[L1H{h + 1}>L2H{g + 1}]" if many else "W_K2"] = np.mean(recalled)
    for g, Phi_2 in enumerate(heads("Phi_2")):
        recalled = [wins(w_U @ Phi_2 @ w_E[k], k) for k in range(len(w_E))]
        found[f"W_O2[L2H{g + 1}]" if many else "W_O2"] = np.mean(recalled)
        for h, Phi_1 in enumerate(heads("Phi_1")):
            recalled = [wins(w_U @ Phi_2 @ Phi_1 @ w_E[k], k) for k in range(len(w_E))]
            found[f"W_O2_spurious[L1H{h + 1}>L2H{g + 1}]" if many else "W_O2_spurious"] = np.mean(recalled)
    return found


def wins(scores: torch.Tensor, target: int) -> bool:
    rivals = [s for j, s in enumerate(scores.tolist()) if j != target]
    return all(scores[target].item() > rival for rival in rivals)


@pytest.mark.parametrize("case", CASES)
def test_all_steps_at_once_equal_a_loop_over_hooked_transformers(case):
    config, moving = CASES[case]
    model = build(config)
    weights = stacked(model, 6, moving)
    names = ["W_K1", "W_K1[3:9]", "W_K1_causal", "W_K2", "W_O2", "W_O2_spurious"]
    table = probes.recall(weights, names, task=TINY)
    for step in range(6):
        expected = loop_recall(at_step(model, weights, moving, step), 16)
        for column, value in expected.items():
            assert table.loc[step, column] == value, (step, column)


def test_every_reading_is_that_of_the_slow_association():
    model = untrained(d_model=32, length=16)
    p, w_U = memories.embedding(model, "p").detach(), memories.embedding(model, "w_U").detach()
    W_O2, values = memories.matrix(model, "W_O2").detach(), memories.embedding(model, "W_V2 w_E").detach()
    found = probes.table(model, "recall", task=TINY).set_index("probe")["value"]
    positions = Association("W_K1", memories.matrix(model, "W_K1").detach(), p[:-1], p[1:], torch.eye(15), "output")
    for name, a in (("W_K1", positions), ("W_O2", matching(W_O2, values, w_U))):
        assert found[name] == np.mean(slow.hits(a))
        assert found[f"{name}_rank"] == np.mean(slow.ranks(a))
        assert found[f"{name}_margin"] == pytest.approx(np.mean(slow.margins(a)), rel=1e-4)
        assert found[f"{name}_sir"] == pytest.approx(slow.signal_to_interference(a), rel=1e-4, abs=1e-6)
        assert found[f"{name}_soft"] == pytest.approx(slow.soft_recall(a), rel=1e-4)
    assert found["W_K1_reversed"] == np.mean(slow.hits(positions.reversed()))


def test_the_divergences_are_those_of_the_feed_forward_s_logits():
    model = untrained(d_model=32, length=16)
    W_F, w_E, w_U = (memories.matrix(model, "W_F"), *(memories.embedding(model, n) for n in ("w_E", "w_U")))
    logits = (w_E @ W_F.T @ w_U.T).double()
    found = probes.table(model, "recall", task=TINY).set_index("probe")["value"]
    pi_b = torch.tensor(TINY.bigram)
    assert found["W_F_kl"] == pytest.approx(kl(logits, pi_b, "to model").item(), rel=1e-4)
    assert found["W_F_kl_reverse"] == pytest.approx(kl(logits, pi_b, "from model", smoothing=0.01).item(), rel=1e-4)
    assert found["W_F_kl_support"] == pytest.approx(kl(logits, pi_b, "on support").item(), rel=1e-4)


def test_the_raw_divergence_leaves_the_layer_norms_out():
    model = randomised(ModelConfig.full(d_model=32, n_ctx=16, layer_norm=True, feed_forward="linear"))
    W_F, w_E, w_U = model.blocks[1].mlp.W_F.detach(), model.W_E.detach(), model.W_U.detach()
    found = probes.table(model, ["W_F_kl_raw", "W_F_kl"], task=TINY).set_index("probe")["value"]
    expected = kl((w_E @ W_F @ w_U).double(), torch.tensor(TINY.bigram), "to model").item()
    assert found["W_F_kl_raw"] == pytest.approx(expected, rel=1e-4)
    assert found["W_F_kl"] != pytest.approx(expected, rel=1e-2)
    assert "LayerNorms" in probes.table(untrained(), ["W_F_kl_raw", "W_F_kl"], task=TINY).attrs["skipped"]["W_F_kl_raw"]


def test_a_third_layer_can_hold_the_induction_head():
    """The second layer moved to the third, between them a layer that does nothing: W_K3 and W_O3 recall everything."""
    two = constructed()
    wide = replace(
        ModelConfig.simplified(d_model=two.cfg.d_model, n_ctx=two.cfg.n_ctx, feed_forward="none"), n_layers=3
    )
    three = build(wide, seed=0)
    weights = {name: torch.zeros_like(value) for name, value in three.named_parameters()}
    for name, value in two.named_parameters():
        if "mlp" not in name:  # layers 1 and 2 become 2 and 3
            weights[name.replace("blocks.1", "blocks.2").replace("blocks.0", "blocks.1")] = value.detach()
    table = probes.recall(weights, ["W_K3_triggers", "W_O3", "W_K2_triggers", "W_O2"], task=FIXED).loc[0]
    assert table["W_K3_triggers"] == table["W_O3"] == 1
    assert max(table["W_K2_triggers"], table["W_O2"]) < 0.1


def test_the_causal_probe_lets_a_query_choose_among_what_it_sees():
    model = constructed()
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    p = weights["pos_embed.W_pos"]
    future = torch.zeros(p.shape[1], p.shape[1])
    for t in range(1, len(p) - 2):
        future += 3e3 * torch.outer(p[t], p[t + 1]) / len(p[0]) ** 2  # every query prefers its successor
    weights["blocks.0.attn.W_K"] = weights["blocks.0.attn.W_K"] + future.T
    table = probes.recall(weights, ["W_K1", "W_K1_causal"], task=FIXED)
    assert table.loc[0, "W_K1"] < 0.2
    assert table.loc[0, "W_K1_causal"] > 0.9


def test_the_constructed_model_recalls_everything_and_its_negatives_nothing():
    table = probes.recall(constructed(), task=FIXED).loc[0]
    assert (table[["W_K1", "W_K1_first64", "W_K1_causal", "W_K2_triggers", "W_O2"]] == 1).all()
    wrong = probes.recall(constructed(shuffle=("W_K1", "W_K2", "W_O2")), task=FIXED).loc[0]
    assert (wrong[["W_K1", "W_K1_first64", "W_K2_triggers", "W_O2"]] <= 0.05).all()
    chance = probes.recall(untrained(), task=FIXED).loc[0]
    assert chance[["W_K1", "W_K2", "W_O2"]].max() < 0.1


def test_random_triggers_store_every_token_in_w_k2():
    table = probes.recall(constructed(RANDOM, 512), task=RANDOM)
    assert table.loc[0, "W_K2"] > 0.95
    assert "random" in table.attrs["skipped"]["W_K2_triggers"]


def test_theory_s_spurious_memory_is_seen_where_it_is_stored():
    model = untrained(d_model=256)
    w_U, remapped = memories.embedding(model, "w_U"), memories.embedding(model, "Phi_1 w_E")
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    stored = w_U.T @ (remapped @ memories.matrix(model, "W_V2").T)
    weights["blocks.1.attn.W_O"] = weights["blocks.1.attn.W_O"] + stored.T
    table = probes.recall(weights, ["W_O2", "W_O2_spurious"], task=FIXED)
    assert table.loc[0, "W_O2_spurious"] > 0.9
    assert table.loc[0, "W_O2"] < 0.1


def test_a_fitted_feed_forward_has_a_small_kl():
    model = untrained(d_model=128)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    logits = torch.log(torch.tensor(RANDOM.bigram) + 1e-9)
    w_E, w_U = weights["embed.W_E"].double(), weights["unembed.W_U"].double()
    weights["blocks.1.mlp.W_F"] = (torch.linalg.pinv(w_E) @ logits @ torch.linalg.pinv(w_U)).float()
    table = probes.recall(weights, ["W_F_kl", "W_F_kl_support"], task=RANDOM)
    assert table.loc[0].max() < 1e-3
    assert probes.recall(model, ["W_F_kl"], task=RANDOM).loc[0, "W_F_kl"] > 1


def test_several_heads_show_each_and_their_spread():
    model = untrained(d_model=24, length=16, n_heads=3, identity_queries=False)
    table = probes.recall(model, ["W_K1_margin", "W_K2_margin"], task=TINY).loc[0]
    heads = table[[f"W_K1_margin[L1H{h}]" for h in (1, 2, 3)]]
    assert table["W_K1_margin_min"] == heads.min()
    assert table["W_K1_margin_max"] == heads.max()
    assert table["W_K1_margin_mean"] == pytest.approx(heads.mean())
    assert {f"W_K2_margin[L1H{h}>L2H{g}]" for h in (1, 2, 3) for g in (1, 2, 3)} <= set(table.index)
    assert "W_K1_margin" not in table.index


def test_a_wrong_name_is_named_with_what_is_near():
    with pytest.raises(InputError, match="got 'W_K2_trigger'; did you mean W_K2_triggers"):
        probes.recall(untrained(), ["W_K2_trigger"])
    with pytest.raises(InputError, match="got 'W_O2_causal'"):
        probes.recall(untrained(), ["W_O2_causal"])


def test_with_layer_norm_three_recalls_are_offered_by_name():
    """On a shipped run: the norms of keys differ, so folding the linear part alone misses some."""
    run = im.load("checkpoints/layernorm-mlp")
    last = [int(run.steps[-1])]
    found = probes.table(run, ["W_K2", "W_K2_normed", "W_K2_raw"], step=last).set_index("probe")["value"]
    assert found["W_K2"] == pytest.approx(40 / 65)
    assert found["W_K2_normed"] == pytest.approx(57 / 65)
    model = run.model(last[0])
    w_E, (first, second) = model.W_E, model.blocks
    remapped = first.ln1(w_E) @ first.attn.W_V[0] @ first.attn.W_O[0]
    scores = (second.ln1(w_E) @ second.attn.W_Q[0]) @ (second.ln1(remapped) @ second.attn.W_K[0]).T
    assert found["W_K2_normed"] == np.mean([wins(scores[k], k) for k in range(65)])
    bare = w_E @ second.attn.W_Q[0] @ (w_E @ first.attn.W_V[0] @ first.attn.W_O[0] @ second.attn.W_K[0]).T
    assert found["W_K2_raw"] == np.mean([wins(bare[k], k) for k in range(65)])
    skipped = probes.table(untrained(), ["W_K2_normed"], task=FIXED).attrs["skipped"]
    assert skipped["W_K2_normed"] == "needs LayerNorms, the model has none"
