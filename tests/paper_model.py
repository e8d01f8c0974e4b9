"""The paper's transformer written from its equations (Section 2), column by column and without TransformerLens.

Slow on purpose: loops over sequences, positions and heads. Takes weights in the paper's orientation (W x).
"""

import math

import torch
from torch import Tensor


def logits(weights: dict[str, Tensor], config, tokens: Tensor) -> Tensor:
    return torch.stack([_sequence(weights, config, z) for z in tokens])


def _sequence(w: dict[str, Tensor], config, z: Tensor) -> Tensor:
    x = [w["W_E"][:, z_t] + w["W_pos"][:, t] for t, z_t in enumerate(z)]
    for layer in range(1, config.n_layers + 1):
        normed = [_norm(w, f"attn{layer}", x_t) for x_t in x]
        attended = [_attention(w, config, layer, normed, t) for t in range(len(x))]
        after = [x_t + a_t for x_t, a_t in zip(x, attended, strict=True)]
        if config.has_feed_forward(layer):
            read = x if config.parallel_blocks else after
            fed = [_feed_forward(w, config, layer, _norm(w, f"ff{layer}", r)) for r in read]
            after = [a + f for a, f in zip(after, fed, strict=True)]
        x = after
    return torch.stack([w["W_U"] @ _norm(w, "out", x_t) for x_t in x])


def _attention(w, config, layer: int, x: list[Tensor], t: int) -> Tensor:
    scale = math.sqrt(config.head_dimension) if config.scale_scores else 1.0
    out = torch.zeros_like(x[0])
    for head in range(config.n_heads):
        W_Q, W_K, W_V, W_O = (w[f"{m}{layer}"][head] for m in ("W_Q", "W_K", "W_V", "W_O"))
        scores = torch.stack([(W_K @ x[s]) @ (W_Q @ x[t]) / scale for s in range(t + 1)])
        sigma = torch.softmax(scores, 0)
        out = out + W_O @ sum(sigma[s] * (W_V @ x[s]) for s in range(t + 1))
    return out


def _feed_forward(w, config, layer: int, x: Tensor) -> Tensor:
    if config.feed_forward == "linear":
        return w["W_F" if layer == config.n_layers else f"W_F{layer}"] @ x
    return w[f"W_out{layer}"] @ torch.relu(w[f"W_in{layer}"] @ x)


def _norm(w, name: str, x: Tensor) -> Tensor:
    if f"gamma_{name}" not in w:
        return x
    centred = x - x.mean()
    return w[f"gamma_{name}"] * centred / torch.sqrt(centred.square().mean() + 1e-5) + w[f"beta_{name}"]


def paper_weights(model) -> dict[str, Tensor]:
    """The model's parameters under the paper's names, matrices transposed to act on columns."""
    parameters = dict(model.named_parameters())
    return {
        paper: parameters[name].detach().double().mT
        if parameters[name].dim() > 1
        else parameters[name].detach().double()
        for paper, name in model.model_config.parameters.items()
    }
