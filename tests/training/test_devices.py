"""The loss of the fast path is computed on the device of the model: nothing is made on the CPU on the way."""

import pytest
import torch
from torch import nn

from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng
from induction_memory.training.forward import evaluate
from tests.elsewhere import Elsewhere, MadeThere

TASK = BigramTask(length=12, k=2)
SIZES = {"d_model": 16, "n_ctx": 12, "d_vocab": TASK.n_inputs}
FULL = ModelConfig.full(**SIZES, n_heads=2, layer_norm=True)


def elsewhere(model):
    """The model with every parameter and buffer on the other device."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                there = nn.Parameter(Elsewhere(value.detach()), requires_grad=value.requires_grad)
                module._parameters[name] = there
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = Elsewhere(value)
    return model


@pytest.mark.parametrize("loss", ["all", "main"])
def test_losses_are_the_same_elsewhere(loss):
    batch = sample(TASK, 6, step_rng(0, 0))
    here = evaluate(build(FULL), batch, loss, gradients=False)
    with MadeThere():
        there = evaluate(elsewhere(build(FULL)), batch, loss, gradients=False)
    assert there.loss == pytest.approx(here.loss, rel=1e-6)
    assert isinstance(there.nll, Elsewhere)
    torch.testing.assert_close(there.nll.inner, here.nll, equal_nan=True)
