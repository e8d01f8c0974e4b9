import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory import probes
from induction_memory.model import memories
from induction_memory.probes import weight_size as weights
from tests.probe_sources import FIXED, TINY, constructed, stacked, untrained

MOVING = ("blocks.0.attn.W_K", "blocks.1.attn.W_K", "blocks.1.attn.W_O", "blocks.1.mlp.W_F")


def test_norms_and_distances_are_those_of_each_step():
    run = im.load("induction-small")
    found = probes.wide(probes.table(run, ["norm_W_K1", "distance_W_K1", "distance_W_O2"]))
    W_K1 = run.stack("W_K1")
    for step, W in zip(run.steps, W_K1, strict=True):
        assert found.loc[step, "norm_W_K1"] == pytest.approx(W.norm().item())
        assert found.loc[step, "distance_W_K1"] == pytest.approx((W - W_K1[0]).norm().item(), abs=1e-6)
    later = probes.wide(probes.table(run, ["distance_W_O2"], step=[200, 600]))
    assert later["distance_W_O2"].tolist() == found.loc[[200, 600], "distance_W_O2"].tolist()  # from step 0, not 200


def test_the_first_of_stacked_weights_is_not_taken_for_the_initial_ones():
    stack = stacked(untrained(d_model=24, length=16), 4, MOVING)
    table = probes.table(stack, ["norm_W_K1", "distance_W_K1"], task=TINY)
    assert set(table["probe"]) == {"norm_W_K1"}
    assert "initialisation" in table.attrs["skipped"]["distance_W_K1"]


def test_ranks_of_known_spectra():
    s = torch.tensor([[3.0, 3.0, 3.0, 0.0], [5.0, 0.0, 0.0, 0.0]])
    assert weights.soft_rank(s).tolist() == pytest.approx([3, 1])


def test_the_constructed_memories_are_the_ideal_ones_and_random_weights_are_not():
    names = [f"{kind}_{W}" for kind in ("cosine", "explained") for W in ("W_K1", "W_K2", "W_O2")]
    found = probes.table(constructed(), names, task=FIXED)
    assert found["value"].min() > 0.99
    chance = probes.table(untrained(), names, task=FIXED)
    assert chance["value"].abs().max() < 0.03


def test_overlap_is_one_when_the_two_maps_are_equal():
    model = untrained(d_model=24, length=16)
    stack = {name: value.detach().clone() for name, value in model.named_parameters()}
    stack["blocks.1.mlp.W_F"] = memories.matrix(model, "Phi_2").T.clone()
    names = ["overlap_W_F_W_O2", "overlap_logits_W_F_W_O2"]
    assert probes.table(stack, names, task=TINY)["value"].tolist() == pytest.approx([1, 1])
    assert probes.table(model, names, task=TINY)["value"].abs().max() < 0.2


def test_the_spectrum_is_that_of_the_matrix():
    model = untrained(d_model=24, length=16, n_heads=2, identity_queries=False)
    found = probes.spectrum(model, "W_K2")
    for head, W in enumerate(memories.matrix(model, "W_K2")):
        values = found.loc[found["head"] == f"L2H{head + 1}", "value"].to_numpy()
        np.testing.assert_allclose(values, torch.linalg.svdvals(W).numpy(), rtol=1e-4, atol=1e-5)
    assert found["rank"].max() == 24


def test_the_spectrum_of_the_feed_forward_has_no_head():
    stack = stacked(untrained(d_model=24, length=16), 2, MOVING)
    found = probes.spectrum(stack, "W_F")
    for step, W in enumerate(stack["blocks.1.mlp.W_F"]):
        values = found.loc[found["step"] == step, "value"].to_numpy()
        np.testing.assert_allclose(values, torch.linalg.svdvals(W).numpy(), rtol=1e-4, atol=1e-5)
    assert set(found["head"]) == {""}
