"""Between a model and the named tensors of a stored step, and the weights of a run before any training.

A stored step has every parameter of the HookedTransformer by its own name, with one exception: a tied W_U = W_E^T is
not stored but computed from W_E.

The weights before training are step 0 of the run, if it is stored and not rounded. Otherwise they are computed again
from the configuration and the seed, which gives the same bits, and compared with the checksum in the manifest. Unknown
weights are None, never a guess.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from induction_memory.model.config import AnyModel, Architecture
from induction_memory.trajectory.tensors import as_bytes

if TYPE_CHECKING:
    from induction_memory.trajectory.export import PlainSource
    from induction_memory.trajectory.folder import FolderSource

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


def initial_weights(source: "FolderSource | PlainSource") -> dict[str, Tensor] | None:
    """Every parameter before training, by its name in the HookedTransformer; None if it is not known."""
    if source.initial_checksum is None or not source.steps:
        return None
    config, seed = source.model_config, source.train.init_seed
    if source.parent is None and 0 in source.steps and 0 not in source.rounded:
        found = source.state(0)
    elif isinstance(config, Architecture):
        from induction_memory.model.building import build

        found = {name: parameter.detach() for name, parameter in build(config, seed).named_parameters()}
    else:
        from induction_memory.model.building import initial_weight

        later = source.state(source.steps[-1])
        names = stored_names(config, later)
        found = with_tied(config, {n: initial_weight(n, tuple(later[n].shape), config, seed) for n in names})
    if checksum(config, found) == source.initial_checksum:
        return found
    logging.getLogger("induction_memory").warning(
        "%s: its initial weights cannot be computed again from its configuration and seed", source.path
    )
    return None
