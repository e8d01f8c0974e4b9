"""What `train` is given to train: a configuration, or a model whose weights it begins with.

A run keeps a configuration and weights by name. A model that has more than these is refused: training would go on with
another model.
"""

from typing import Any

from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.model.architecture import AnyModel, Architecture, freeze
from induction_memory.model.config import ModelConfig


def model_and_weights(model: Any) -> tuple[AnyModel, dict[str, Tensor] | None]:
    """The configuration of the model to be trained and, if a model is given, the weights it begins with.

    Parameters of a model with requires_grad False stay frozen.
    """
    if isinstance(model, ModelConfig | Architecture):
        return model, None
    if not isinstance(model, nn.Module):
        return Architecture.of(model), None
    config: Any = getattr(model, "model_config", None)
    if isinstance(config, ModelConfig):
        from induction_memory.model.as_built import departure

        reason = departure(model)
        require(reason is None, "model", "one as im.build made it", f"one where {reason}")
    else:
        config = Architecture.of(model)
    _require_kept(model, config)
    held = [n for n, p in model.named_parameters() if not p.requires_grad and n in config.parameters.values()]
    weights = {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
    return freeze(config, held) if held else config, weights


def _require_kept(model: nn.Module, config: AnyModel) -> None:
    """Refuse what training would not keep: parameters that share their numbers, are missing, or have another type."""
    named = dict(model.named_parameters(remove_duplicate=False))
    places: dict[int, list[str]] = {}
    for name, parameter in named.items():
        dtype = str(parameter.dtype).removeprefix("torch.")
        require(dtype == "float32", f"model.{name}", "float32", dtype)
        places.setdefault(parameter.data_ptr(), []).append(name)
    shared = [" and ".join(sorted(names)) for names in places.values() if len(names) > 1]
    tied = ["embed.W_E and unembed.W_U"] if config.tied_output else []
    allowed = f"only {tied[0]} tied" if tied else "no tied parameters"
    require(shared == tied, "model", allowed, ", ".join(shared) or "none")
    for name in config.parameters.values():
        require(name in named, "model", f"a parameter {name}", "none")
