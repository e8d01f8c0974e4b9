"""The parameters of any TransformerLens model by HookedTransformer's names."""

from typing import Any

from torch import Tensor, nn


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Name -> tensor, detached. Of a TransformerBridge: what its accessors share with HookedTransformer."""
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if "embed.W_E" in named:
        return named
    bridge: Any = model
    weights = {"embed.W_E": bridge.W_E, "unembed.W_U": bridge.W_U}
    if hasattr(bridge, "pos_embed"):
        weights["pos_embed.W_pos"] = bridge.pos_embed.W_pos
    for matrix in ("W_Q", "W_K", "W_V", "W_O"):
        for layer, W in enumerate(getattr(bridge, matrix)):
            weights[f"blocks.{layer}.attn.{matrix}"] = W
    norms = [f"blocks.{layer}.{norm}" for layer in range(bridge.cfg.n_layers) for norm in ("ln1", "ln2")]
    for name in [*norms, "ln_final"] if bridge.cfg.normalization_type == "LN" else ():
        norm = model.get_submodule(name)
        weights |= {f"{name}.w": norm.w, f"{name}.b": norm.b}
    return {name: weight.detach() for name, weight in weights.items()}
