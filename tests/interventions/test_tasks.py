"""Ablation on tasks other than in-context bigrams: groups by name, soft targets, outputs of their own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.interventions.ablations import ablate
from induction_memory.interventions.patching import agreement, attribute, gradient
from induction_memory.interventions.scores import Scorer, contrast
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.task.corruptions import pairs_of
from induction_memory.task.factual_recall import FactualRecall
from induction_memory.task.markov import MarkovChains
from induction_memory.task.noisy import NoisyTriggers

TASKS = [
    NoisyTriggers(length=16, k=3),
    MarkovChains(length=10, order=2, symbols=2),
    FactualRecall(subjects=4, relations=2, answers=3, length=6),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_heads_are_ablated_and_scored_on_the_groups_of_the_task(task):
    model = build(RunConfig.of(task, ModelConfig.full(d_model=8), TrainConfig()).model, seed=1)
    batch = task.sample(6, np.random.default_rng(0))
    table = ablate(model, batch, heads="all", kind="zero")
    groups = [name for name in batch.groups if name != "first"]
    assert {f"{group}_accuracy" for group in groups} <= set(table)
    hook = ("blocks.0.attn.hook_z", lambda z, hook: z * 0)
    logits = model.run_with_hooks(batch.tokens, fwd_hooks=[hook])
    row = table.set_index("component").loc["L1H1"]
    for group in groups:
        where = batch.group(group)
        expected = F.cross_entropy(logits[where], batch.targets[where]).item()
        assert row[f"{group}_loss"] == pytest.approx(expected, rel=1e-4)


def test_soft_targets_have_a_loss_and_no_accuracy():
    task = MarkovChains(length=8, soft_targets=True)
    batch = task.sample(5, np.random.default_rng(0))
    logits = torch.randn(5, 8, 3, generator=torch.Generator().manual_seed(0))
    found = Scorer(logits, batch)(logits)
    assert set(found) == {"chain_loss", "chain_loss_se", "start_loss", "start_loss_se", "kl", "kl_se"}
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(0, 1)).item()
    assert found["chain_loss"].item() == pytest.approx(expected, rel=1e-5)
    assert found["kl"].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("soft", [True, False])
def test_attribution_leaves_out_the_gradient_of_a_kl_and_integrates_to_one(soft):
    """The derivative of a KL is zero at the run that it is measured from."""
    task = MarkovChains(length=8) if soft else FactualRecall(subjects=4, relations=2, answers=3, length=6)
    model = build(RunConfig.of(task, ModelConfig.full(d_model=8), TrainConfig()).model, seed=1)
    pairs = pairs_of(task, task.sample(16, np.random.default_rng(0)), None, np.random.default_rng(1))
    assert (pairs.answer is None) == soft
    found = contrast(model, pairs)
    table = attribute(found, points=64)
    assert table["integrated"].sum() == pytest.approx(1, abs=0.02)
    assert ("gradient" in table) != soft
    assert agreement(table)["method"].tolist() == (["integrated"] if soft else ["gradient", "integrated"])
    if soft:
        assert gradient(found, 0.0).abs().max() < 1e-4
