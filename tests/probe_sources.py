"""Small models and stacked weights that the tests of the probes share."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import Memory, construct
from induction_memory.task.bigrams import BigramTask

LENGTH = 48
FIXED = BigramTask(length=LENGTH, k=5, triggers="fixed")
RANDOM = BigramTask(length=LENGTH, k=5)
TINY = BigramTask(length=16, k=3)


@cache
def constructed(task: BigramTask = FIXED, d_model: int = 384, *, shuffle: tuple[Memory, ...] = ()) -> Any:
    """The paper's hand-built model without a feed-forward, small enough for a test."""
    config = ModelConfig.simplified(d_model=d_model, n_ctx=task.length, feed_forward="none")
    return construct(task, config, shuffle=shuffle)


@cache
def untrained(d_model: int = 384, length: int = LENGTH, **changes: Any) -> Any:
    return build(ModelConfig.simplified(d_model=d_model, n_ctx=length, **changes))


def stacked(model: Any, n_steps: int, moving: tuple[str, ...], seed: int = 0) -> dict[str, Tensor]:
    """Weights over steps: those in `moving` walk at random from the model's, the others have no step axis."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name in moving:
        walk = torch.randn(n_steps, *weights[name].shape, generator=generator).cumsum(0)
        weights[name] = weights[name] + 0.1 * (walk - walk[0])
    return weights


def at_step(model: Any, weights: dict[str, Tensor], moving: tuple[str, ...], step: int) -> Any:
    """The model with the weights of one step."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name][step] if name in moving else weights[name])
    return model
