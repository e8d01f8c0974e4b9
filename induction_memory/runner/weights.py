"""The weights of any TransformerLens model by HookedTransformer's names, and the same model with other weights.

A TransformerBridge is read through its accessors. Gains are converted to the factors of the stream: some architectures
store gain - 1, and some have norms without weights. Keys and values that several heads share are listed as `_W_K` and
`_W_V`, as in HookedTransformer. The epsilon of a norm is listed as `<norm>.eps` if it is not 1e-5. A norm without
weights, as TransformerLens makes it when it folds them, is listed with gain 1 (and bias 0, if it centres).

`replaced` exchanges the data of parameters inside a block and restores them afterwards, also after an exception. The
model's numbers are never overwritten.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from induction_memory.errors import require

EPS = 1e-5
"""The epsilon of a norm if none is listed."""


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor, detached; for a TransformerBridge, the names that its accessors share with HookedTransformer."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if "embed.W_E" in named:
        for name, module in model.named_modules():
            if type(module).__name__ in ("LayerNormPre", "RMSNormPre") and ".mlp." not in name:
                named[f"{name}.w"] = torch.ones_like(named["embed.W_E"][0])
                if type(module).__name__ == "LayerNormPre":
                    named[f"{name}.b"] = torch.zeros_like(named["embed.W_E"][0])
        eps = float(getattr(model.cfg, "eps", EPS))
        gains = [name for name in named if name.endswith(".w")]
        return named | ({} if eps == EPS else {f"{name[:-2]}.eps": torch.tensor(eps) for name in gains})
    bridge: Any = model
    weights = {"embed.W_E": bridge.W_E, "unembed.W_U": bridge.W_U}
    if hasattr(bridge, "pos_embed"):
        weights["pos_embed.W_pos"] = bridge.pos_embed.W_pos
    for matrix in ("W_Q", "W_K", "W_V", "W_O"):
        for layer, W in enumerate(getattr(bridge, matrix)):
            shared = matrix in ("W_K", "W_V") and len(W) < bridge.cfg.n_heads
            weights[f"blocks.{layer}.attn.{'_' if shared else ''}{matrix}"] = W
    norms = [f"blocks.{layer}.{norm}" for layer in range(bridge.cfg.n_layers) for norm in ("ln1", "ln2")]
    for name in [*norms, "ln_final"] if bridge.cfg.normalization_type is not None else ():
        weights |= _norm(bridge, name)
    return {name: weight.detach() for name, weight in weights.items()}


def _norm(bridge: Any, name: str) -> dict[str, Tensor]:
    """Gain, epsilon and (for a LayerNorm) bias of a norm; empty if the block has no norm of this name."""
    try:
        module = bridge.get_submodule(name)
    except AttributeError:
        return {}
    inner = getattr(module, "original_component", module)
    stored = dict(inner.named_parameters())
    zero = torch.zeros_like(bridge.W_E[0])
    offset = 1.0 if getattr(bridge.cfg, "rmsnorm_uses_offset", False) else 0.0
    gain = _first(stored, ("weight", "w"))
    found = {f"{name}.w": zero + 1 if gain is None else gain + offset}
    if bridge.cfg.normalization_type.startswith("LN"):
        bias = _first(stored, ("bias", "b"))
        found[f"{name}.b"] = zero if bias is None else bias
    eps = next((getattr(inner, key) for key in ("variance_epsilon", "eps") if hasattr(inner, key)), bridge.cfg.eps)
    return found if float(eps) == EPS else found | {f"{name}.eps": torch.tensor(float(eps))}


def _first(stored: dict[str, Tensor], names: tuple[str, ...]) -> Tensor | None:
    return next((stored[name] for name in names if name in stored), None)


@contextmanager
def replaced(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[nn.Module]:
    """`with replaced(model, {"blocks.0.attn.W_K": W}):` the model has these weights inside the block."""
    parameters = dict(model.named_parameters()) if weights else {}
    for name, value in weights.items():
        require(name in parameters, "weights", f"names out of {', '.join(parameters)}", repr(name))
        shape = tuple(parameters[name].shape)
        require(tuple(value.shape) == shape, f"weights.{name}", f"shape {shape}", tuple(value.shape))
    before = {name: parameters[name].data for name in weights}
    try:
        for name, value in weights.items():
            parameters[name].data = value.detach().to(before[name])
        yield model
    finally:
        for name, data in before.items():
            parameters[name].data = data


def mixed(
    own: Mapping[str, Tensor], other: Mapping[str, Tensor], parameters: Mapping[str, int | None]
) -> dict[str, Tensor]:
    """The named parameters from `other`; for a parameter with a head, only that head's slice.

    A name that ends in a dot means all parameters that begin with it.
    """
    weights: dict[str, Tensor] = {}
    for wanted, head in parameters.items():
        for name in own:
            if name != wanted and not (wanted.endswith(".") and name.startswith(wanted)):
                continue
            if head is None:
                weights[name] = other[name]
            else:
                weights.setdefault(name, own[name].clone())[head] = other[name][head]
    return weights
