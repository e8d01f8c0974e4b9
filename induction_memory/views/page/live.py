"""The weights with which the page runs the model itself, and the page's forward pass in torch.

The page can run only models with attention and linear feed-forwards, without LayerNorm, with fixed embeddings. In the
paper's orientation, with x_t = w_E(z_t) + p_t, each layer computes for each of its heads

    a_ts = softmax over s <= t of x_t^T W_K x_s / sqrt(d_head),    x_t += W_O W_V sum_s a_ts x_s

then x_t += W_F x_t if it has a feed-forward; the logits are w_U x_t. A trained matrix is stored as its first value and,
for every step, its change in 8 bits with one scale per row:

    W(step) = W(first) + scale(step, row) * code(step, row, column)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.model.config import ModelConfig
from induction_memory.source.sources import select

Arrays = dict[str, np.ndarray]
KINDS = ("W_K", "W_V", "W_O")


def why_not(source: Any) -> str:
    """Why the page cannot run the models of a source; "" if it can."""
    model = getattr(source, "model_config", None)
    if source.task is None:
        return "the task is not known, so a text cannot be split into tokens"
    if not isinstance(model, ModelConfig):
        return "the model's configuration is not a ModelConfig"
    if model.layer_norm:
        return "the model has LayerNorms"
    if model.feed_forward == "relu":
        return "the model has ReLU feed-forwards"
    if model.parallel_blocks:
        return "the model's blocks are parallel"
    if not model.identity_queries:
        return "the model's queries are trained"
    if moving := sorted({"W_E", "W_pos", "W_U"} & set(model.trained_names)):
        return f"{', '.join(moving)} are trained"
    return ""


def pack(run: Any, steps: Sequence[int]) -> tuple[dict[str, Any], Arrays]:
    """The description of the model for the page, and its arrays."""
    model, arrays = run.model_config, Arrays()
    assert isinstance(model, ModelConfig), why_not(run)
    stack = select(run, step=steps).stack
    for name in ("w_E", "p", "w_U"):
        arrays[name] = stack.embedding(name)[0, 0].numpy().astype("<f4")

    def matrix(name: str, W: Float[Tensor, "step d_out d_in"]) -> dict[str, Any]:
        arrays[name] = W[0].numpy().astype("<f4")
        if bool((W[:1] == W).all()):
            return {"name": name, "moves": False}
        change = (W - W[0]).numpy()
        scale = np.abs(change).max(-1, keepdims=True) / 127
        arrays[f"{name} codes"] = np.rint(change / np.where(scale > 0, scale, 1)).astype(np.int8)
        arrays[f"{name} scale"] = scale[..., 0].astype("<f4")
        return {"name": name, "moves": True}

    layers = []
    for layer in range(1, model.n_layers + 1):
        heads = []
        for head in range(model.n_heads):
            prefix = f"L{layer}H{head + 1}"
            heads.append({k: matrix(f"{prefix} {k}", stack.memory(f"{k}{layer}")[:, head]) for k in KINDS})
        feed = None
        if model.has_feed_forward(layer):
            name = "W_F" if layer == model.n_layers else f"W_F{layer}"
            feed = matrix(name, stack.memory(name)[:, 0])
        layers.append({"heads": heads, "feed_forward": feed})
    scale = model.head_dimension**-0.5 if model.scale_scores else 1.0
    facts = {"d": model.d_model, "scale": scale, "n_ctx": model.n_ctx, "layers": layers}
    return facts, arrays


def decode(arrays: Arrays, matrix: dict[str, Any], step: int) -> Float[Tensor, "d_out d_in"]:
    """A matrix at the `step`-th stored step, decoded as in the page."""
    W = torch.from_numpy(arrays[matrix["name"]].copy())
    if not matrix["moves"]:
        return W
    codes, scale = arrays[f"{matrix['name']} codes"][step], arrays[f"{matrix['name']} scale"][step]
    return W + torch.from_numpy(codes.astype(np.float32)) * torch.from_numpy(scale.copy())[:, None]


@torch.no_grad()
def forward(
    facts: dict[str, Any], arrays: Arrays, step: int, tokens: Int[Tensor, "row pos"]
) -> tuple[Float[Tensor, "row head query key"], Float[Tensor, "row pos vocab"]]:
    """The formulas above in torch, with the page's weights: attention of every head, and logits."""
    w_E, p, w_U = (torch.from_numpy(arrays[name].copy()) for name in ("w_E", "p", "w_U"))
    x, maps = w_E[tokens] + p[: tokens.shape[1]], []
    later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    for layer in facts["layers"]:
        added = torch.zeros_like(x)
        for head in layer["heads"]:
            W_K, W_V, W_O = (decode(arrays, head[kind], step) for kind in ("W_K", "W_V", "W_O"))
            scores = facts["scale"] * (x @ W_K @ x.mT)
            attention = scores.masked_fill(later, -torch.inf).softmax(-1)
            maps.append(attention)
            added = added + attention @ x @ W_V.mT @ W_O.mT
        x = x + added
        if layer["feed_forward"] is not None:
            x = x + x @ decode(arrays, layer["feed_forward"], step).mT
    return torch.stack(maps, dim=1), x @ w_U.mT
