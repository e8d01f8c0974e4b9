"""Between a model and the named tensors of a stored step.

A stored step has every parameter of the HookedTransformer by its own name, with one exception: a tied W_U = W_E^T is
not stored but computed from W_E.
"""

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from induction_memory.model.architecture import AnyModel
from induction_memory.trajectory.tensors import as_bytes

W_E, W_U = "embed.W_E", "unembed.W_U"


def stored_names(config: AnyModel, names: Iterable[str]) -> tuple[str, ...]:
    """The parameters that are written to the disk."""
    return tuple(name for name in names if not (config.tied_output and name == W_U))


def with_tied(config: AnyModel, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with W_U, if it is tied."""
    return dict(state) | ({W_U: state[W_E].mT} if config.tied_output else {})


@torch.no_grad()
def fill(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the tensors of a state into the parameters of the same names."""
    for name, parameter in model.named_parameters():
        if name in state:
            parameter.copy_(state[name])


def checksum(config: AnyModel, state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names and bytes of a state's stored parameters."""
    digest = hashlib.sha256()
    for name in sorted(stored_names(config, state)):
        digest.update(name.encode() + b"\0")
        digest.update(as_bytes(state[name]))
    return digest.hexdigest()
