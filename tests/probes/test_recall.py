import numpy as np
import pytest
import torch

from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.memory import associative, divergence
from induction_memory.model import memories
from induction_memory.model.build import build
from induction_memory.model.config import ModelConfig
from induction_memory.probes import memory_recall
from induction_memory.probes.source import read
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


def test_a_score_that_is_nan_recalls_nothing():
    nan = torch.nan
    broken = torch.full((2, 3, 3), nan)
    rival, target = torch.eye(3), torch.eye(3)
    rival[0, 1] = nan
    target[0, 0] = nan
    table, targets = torch.stack([*broken, rival, target]), torch.arange(3)
    for allowed in (None, torch.ones(3, 3, dtype=torch.bool), torch.ones(3, 3, dtype=torch.bool).tril()):
        recalled = memory_recall.hits(table, targets, allowed)
        assert not recalled[:2].any()
        assert recalled[3].tolist() == [False, True, True]
    assert memory_recall.hits(rival, targets).tolist() == [False, True, True]
    assert memory_recall.reading("_rank", table, targets).tolist() == pytest.approx([3, 3, 4 / 3, 5 / 3])
    assert memory_recall.reading("_margin", table, targets).isnan().all()
    assert memory_recall.reading("_soft", table, targets).isnan().all()


def loop_recall(model, T: int) -> dict[str, float]:
    """The paper's recalls of one model, an input at a time, a head at a time, from its own weights."""

    def heads(name):
        W = memories.memory(model, name)
        return W if W.dim() == 3 else W[None]

    p, w_E, w_U = (memories.embedding(model, name) for name in ("p", "w_E", "w_U"))
    found = {}
    many = len(heads("W_K1")) > 1
    for h, W in enumerate(heads("W_K1")):
        label = f"[{h}]" if many else ""
        found[f"W_K1{label}"] = np.mean([wins(p[t] @ W @ p[: T - 1].T, t - 1) for t in range(1, T)])
        found[f"W_K1[3:9]{label}"] = np.mean([wins(p[t] @ W @ p[3:8].T, t - 1 - 3) for t in range(4, 9)])
        found[f"W_K1_causal{label}"] = np.mean([wins(p[t] @ W @ p[: t + 1].T, t - 1) for t in range(1, T)])
    for g, W in enumerate(heads("W_K2")):
        for h, Phi_1 in enumerate(heads("Phi_1")):
            keys = w_E @ Phi_1.T
            recalled = [wins(w_E[k] @ W @ keys.T, k) for k in range(len(w_E))]
            found[f"W_K2[{h}>{g}]" if many else "W_K2"] = np.mean(recalled)
    for g, Phi_2 in enumerate(heads("Phi_2")):
        recalled = [wins(w_U @ Phi_2 @ w_E[k], k) for k in range(len(w_E))]
        found[f"W_O2[{g}]" if many else "W_O2"] = np.mean(recalled)
        for h, Phi_1 in enumerate(heads("Phi_1")):
            recalled = [wins(w_U @ Phi_2 @ Phi_1 @ w_E[k], k) for k in range(len(w_E))]
            found[f"W_O2_spurious[{h}>{g}]" if many else "W_O2_spurious"] = np.mean(recalled)
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


def test_one_recall_is_the_associative_memory_of_the_paper():
    model = untrained(d_model=32, length=16)
    p, w_E = memories.embedding(model, "p"), memories.embedding(model, "w_E")
    stack = read(model, task=TINY).stack
    W_K1, each = memories.memory(model, "W_K1").mT, torch.arange(15)
    assert memory_recall.measure(stack, "W_K1") == associative.recall(W_K1, p[1:], p[:-1], each)
    memory = (memories.memory(model, "W_O2"), memories.embedding(model, "W_V2 w_E"), memories.embedding(model, "w_U"))
    each = torch.arange(65)
    for name, reading in (
        ("W_O2_margin", associative.margin(*memory, each).mean()),
        ("W_O2_rank", associative.rank(*memory, each).double().mean()),
        ("W_O2_sir", associative.signal_to_interference(*memory, each)),
        ("W_O2_soft", associative.soft_recall(*memory, each)),
    ):
        torch.testing.assert_close(
            memory_recall.measure(stack, name).squeeze(), reading.double(), rtol=1e-4, atol=1e-5, check_dtype=False
        )
    W_F, w_U = memories.memory(model, "W_F"), memories.embedding(model, "w_U")
    pi_b = torch.tensor(TINY.bigram).float()
    for name, kl in (
        ("W_F_kl", divergence.kl_to_model(W_F, w_E, w_U, pi_b)),
        ("W_F_kl_reverse", divergence.kl_from_model(W_F, w_E, w_U, pi_b, smoothing=0.01)),
        ("W_F_kl_support", divergence.kl_from_model_on_support(W_F, w_E, w_U, pi_b)),
    ):
        assert memory_recall.measure(stack, name).item() == pytest.approx(kl.item(), rel=1e-4)


def test_ties_are_misses_and_zeros_recall_nothing():
    table = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    assert memory_recall.hits(table, torch.tensor([0, 1])).tolist() == [False, True]
    assert not memory_recall.hits(torch.zeros(3, 3), torch.arange(3)).any()
    assert memory_recall.margins(table, torch.tensor([0, 1])).tolist() == [0, 2]


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
    stored = w_U.T @ (remapped @ memories.memory(model, "W_V2").T)
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
    heads = table[[f"W_K1_margin[{h}]" for h in range(3)]]
    assert table["W_K1_margin_min"] == heads.min()
    assert table["W_K1_margin_max"] == heads.max()
    assert table["W_K1_margin_mean"] == pytest.approx(heads.mean())
    assert {f"W_K2_margin[{h}>{g}]" for h in range(3) for g in range(3)} <= set(table.index)
    assert "W_K1_margin" not in table.index


def test_a_wrong_name_is_named_with_what_is_near():
    with pytest.raises(InputError, match=r"probe: expected a probe \(like W_K2.*got 'W_K2_trigger'"):
        probes.recall(untrained(), ["W_K2_trigger"])
    with pytest.raises(InputError, match="a variant that W_O2 has"):
        probes.recall(untrained(), ["W_O2_causal"])
