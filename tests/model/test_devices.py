"""Associations stay on the device of the weights: nothing is made on the CPU on the way."""

import pytest
import torch

from induction_memory.memory import alignment, hits, margin, rank, recall, signal_to_interference, soft_recall
from induction_memory.model.associations import associate
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import weights_of
from induction_memory.task.bigrams import BigramTask
from tests.elsewhere import Elsewhere, MadeThere

TASK = BigramTask(length=12, k=3, triggers="fixed")


@pytest.fixture(scope="module")
def weights():
    config = ModelConfig.full(d_model=16, n_heads=2, n_ctx=12, layer_norm=True, feed_forward="linear")
    return {name: weight.clone() for name, weight in weights_of(build(config)).items()}


def test_the_disguise_finds_a_tensor_on_the_cpu():
    there = Elsewhere(torch.ones(3))
    assert (there + 1).inner.tolist() == [2, 2, 2]
    with pytest.raises(AssertionError, match="mixes devices"):
        there + torch.ones(3)


@pytest.mark.parametrize("what", ["W_K1", "W_K1_causal", "W_K2", "W_K2_triggers", "W_K2_normed", "W_O2", "W_O2_raw"])
def test_readings_are_the_same_elsewhere(weights, what):
    there = {name: Elsewhere(weight) for name, weight in weights.items()}
    here = associate(weights, what, task=TASK)
    with MadeThere():
        a = associate(there, what, task=TASK)
        for reading in (hits, recall, margin, rank, soft_recall, signal_to_interference, alignment):
            found = reading(a)
            assert isinstance(found, Elsewhere), reading.__name__
            torch.testing.assert_close(found.inner, reading(here))
