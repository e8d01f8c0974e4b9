"""Between a model and the named tensors of a stored step.

A stored step has every parameter of the HookedTransformer by its own name, but for one: with a tied output, W_U = W_E^T
is the same numbers again and is made from W_E.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from induction_memory.model.config import ModelConfig

W_E, W_U = "embed.W_E", "unembed.W_U"


def stored_names(config: ModelConfig, names: Iterable[str]) -> tuple[str, ...]:
    """The parameters that are written to the disk."""
    return tuple(name for name in names if not (config.tied_output and name == W_U))


def with_tied(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with W_U, where it is tied."""
    return dict(state) | ({W_U: state[W_E].mT} if config.tied_output else {})


@torch.no_grad()
def fill(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a state into the parameters of the same names."""
    for name, parameter in model.named_parameters():
        if name in state:
            parameter.copy_(state[name])
