"""The weights of a run before any training.

They are step 0 of the run, if it is stored and not rounded. Otherwise they are computed again from the configuration
and the seed, which gives the same bits, and compared with the checksum in the manifest. Format version 1 kept no
checksum. There, only runs that this package trained from their seed are computed again, not branches and not imported
runs. Unknown weights are None, never a guess.
"""

import logging

from torch import Tensor

from induction_memory.model.architecture import AnyModel, Architecture
from induction_memory.model.building import initial_weight
from induction_memory.trajectory.export import PlainSource
from induction_memory.trajectory.folder import FolderSource
from induction_memory.trajectory.states import checksum, with_tied


def initial_weights(source: FolderSource | PlainSource) -> dict[str, Tensor] | None:
    """Every parameter before training, by its name in the HookedTransformer; None if it is not known."""
    expected = source.initial_checksum
    if expected is None and not source.trained_from_seed:
        return None
    if source.parent is None and 0 in source.steps and 0 not in source.rounded:
        frozen = {name: source.read_frozen(name) for name in source.frozen}
        found = frozen | {name: source.read_step(name, 0) for name in source.moving}
    else:
        config, seed = source.model_config, source.train.init_seed
        found = _drawn(source, config, seed)
    if expected is None or checksum(source.model_config, found) == expected:
        return found
    logging.getLogger("induction_memory").warning(
        "%s: its initial weights cannot be computed again from its configuration and seed", source.path
    )
    return None


def _drawn(source: FolderSource | PlainSource, config: AnyModel, seed: int) -> dict[str, Tensor]:
    """The weights that training begins with, drawn from the seed."""
    if isinstance(config, Architecture):
        from induction_memory.model.building import build

        return {name: parameter.detach() for name, parameter in build(config, seed).named_parameters()}
    return with_tied(config, {n: initial_weight(n, shape, config, seed) for n, shape in source.shapes.items()})
