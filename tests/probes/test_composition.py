import pytest
import torch

from induction_memory import probes
from induction_memory.model import memories
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.probes import composition
from induction_memory.task.sampler import sample, step_rng
from tests.probe_sources import FIXED, TINY, constructed, untrained


def test_scores_are_ratios_of_norms_for_every_pair_of_heads():
    model = untrained(d_model=24, length=16, n_heads=2, identity_queries=False)
    found = probes.table(model, "composition", task=TINY).set_index(["probe", "head"])["value"]
    W_K2, Phi_1, Phi_2 = (memories.matrix(model, name) for name in ("W_K2", "Phi_1", "Phi_2"))
    for h in range(2):
        for g in range(2):
            for letter, A in (("K", W_K2[g]), ("Q", W_K2[g].T), ("V", Phi_2[g])):
                expected = (A @ Phi_1[h]).norm() / (A.norm() * Phi_1[h].norm())
                assert found[f"{letter}_composition", f"L1H{h + 1}>L2H{g + 1}"] == pytest.approx(
                    expected.item(), rel=1e-4
                )


def test_the_baseline_is_that_of_matrices_turned_at_random():
    generator = torch.Generator().manual_seed(0)
    A, B = torch.randn(8, 3, generator=generator).T.double(), torch.randn(8, 8, generator=generator).double()
    turned = composition.turned(
        composition.squared_spectrum(A, 8), composition.squared_spectrum(B, 8), composition.squared_rotations(8)
    )
    drawn = []
    for _ in range(2000):
        Q = torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q
        drawn.append(composition.composition(A, Q @ B))
    drawn = torch.stack(drawn)
    assert turned.mean().item() == pytest.approx(drawn.mean().item(), abs=0.02)
    assert turned.std().item() == pytest.approx(drawn.std().item(), rel=0.35)
    assert turned.square().mean().item() == pytest.approx(1 / 8, abs=0.02)


def test_the_constructed_model_composes_by_keys_and_copies():
    found = probes.table(constructed(), "composition", task=FIXED).set_index("probe")["value"]
    assert found["K_composition_z"] > 10
    assert abs(found["Q_composition_z"]) < 4
    assert abs(found["V_composition_z"]) < 4
    assert found["copying2"] > 0.99
    assert abs(found["copying1"]) < 0.3
    chance = probes.table(untrained(), "composition", task=FIXED).set_index("probe")["value"]
    assert chance[["K_composition_z", "Q_composition_z", "V_composition_z"]].abs().max() < 5
    assert chance[["copying1", "copying2"]].abs().max() < 0.3


@pytest.mark.parametrize("d_model", [8, 64])
def test_copying_needs_outputs_that_are_tokens(d_model):
    model = build(ModelConfig(d_model=d_model, n_ctx=8, d_vocab=10, d_vocab_out=9))
    found = probes.table(model, "composition")
    assert "separate output vocabulary" in found.attrs["skipped"]["copying1"]
    assert set(found["probe"].str[0]) == {"K", "Q", "V"}


def test_copying_reads_the_same_eigenvalues_from_the_smaller_matrix():
    assert composition.copying(torch.eye(4)) == 1
    assert composition.copying(-torch.eye(4)) == -1
    small = untrained(d_model=24, length=16)  # 65 tokens, 24 dimensions
    W_E, W_U, Phi = memories.embedding(small, "w_E"), memories.embedding(small, "w_U"), memories.matrix(small, "Phi_2")
    values = torch.linalg.eigvals((W_U @ Phi @ W_E.T).double())
    expected = (values.real.sum() / values.abs().sum()).item()
    found = probes.table(small, ["copying2"], task=TINY)["value"].item()
    assert found == pytest.approx(expected, rel=1e-3)


CONFIGS = {
    "simplified": ModelConfig(d_model=24, n_ctx=16),
    "attention only": ModelConfig(d_model=24, n_ctx=16, feed_forward="none"),
    "heads and LayerNorm": ModelConfig.full(d_model=24, n_ctx=16, n_heads=2, layer_norm=True),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_attributions_add_up_to_the_target_s_logit_above_the_average(case):
    config, batch = CONFIGS[case], sample(TINY, 8, step_rng(4, 0))
    model = build(config)
    found = probes.table(model, "attribution", task=TINY, batch=batch).groupby("probe")["value"].sum()
    logits = model(batch.tokens)[batch.in_context]
    target = logits.gather(-1, batch.targets[batch.in_context][:, None]).squeeze(-1)
    whole = (target - logits.mean(-1)).mean().item()
    parts = [n for n in found.index if n in ("dla_token", "dla_position") or n.startswith(("dla_heads", "dla_feed"))]
    assert found[parts].sum() == pytest.approx(whole, abs=1e-4)
    read = found[[n for n in found.index if n.startswith("dla_W_O2")]]
    assert read.sum() == pytest.approx(found["dla_heads2"], abs=1e-4)
    if config.feed_forward == "linear":
        fed = found[[n for n in found.index if n.startswith("dla_W_F")]]
        assert fed.sum() == pytest.approx(found["dla_feed_forward2"], abs=1e-4)


@pytest.mark.parametrize("case", CONFIGS)
def test_what_values_read_is_attributed_as_a_loop_over_triggers_and_keys_does(case):
    model, batch = build(CONFIGS[case]), sample(TINY, 4, step_rng(4, 0))
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.tokens)
    w_U, Phi_2 = memories.embedding(model, "w_U"), memories.matrix(model, "Phi_2")
    Phi_2 = Phi_2 if Phi_2.dim() == 3 else Phi_2[None]
    normed, expected = CONFIGS[case].layer_norm, torch.zeros(len(Phi_2), dtype=torch.float64)
    for b, t in batch.in_context.nonzero().tolist():
        answer = (w_U[batch.targets[b, t]] - w_U.mean(0)) / (cache["ln_final.hook_scale"][b, t] if normed else 1)
        for s in range(t + 1):
            x = cache["hook_embed"][b, s] / (cache["blocks.1.ln1.hook_scale"][b, s] if normed else 1)
            expected += cache["blocks.1.attn.hook_pattern"][b, :, t, s] * (Phi_2 @ x @ answer)
    found = probes.table(model, ["dla_W_O2_token"], task=TINY, batch=batch)["value"]
    assert found.tolist() == pytest.approx((expected / batch.in_context.sum()).tolist(), rel=1e-4)


def test_the_constructed_model_answers_through_w_o2_s_token_memory():
    table = probes.table(constructed(), "attribution", task=FIXED)
    found = table.set_index("probe")["value"]
    assert found["dla_heads2"] > 10
    assert found["dla_W_O2_token"] > 0.9 * found["dla_heads2"]
    assert found[["dla_token", "dla_position", "dla_heads1"]].abs().max() < 1
    assert "feed-forward" in table.attrs["skipped"]["dla_feed_forward2"]
