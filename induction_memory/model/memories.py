"""Weights and embeddings in the paper's orientation: every transpose of the package lives here.

The paper writes columns, W x; TransformerLens writes rows, x W, and keeps a matrix a head. With rows W_Q, W_K, W_V of
shape [head, d_model, d_head] and W_O of shape [head, d_head, d_model]:

    W_K<l>   = W_Q W_K^T       key-query memory: the score before the softmax is x_q^T W_K<l> x_k (times 1/sqrt(d_head))
    W_V<l>   = W_V^T           [d_head, d_model]
    W_O<l>   = W_O^T           [d_model, d_head]
    Phi_<l>  = W_O<l> W_V<l>   value-output memory: what attending to x adds to the stream
    W_F      = W_F^T           linear feed-forward of the last layer (W_F<l> in the others)
    w_E, p, w_U                rows: embedding of token k, of position t, output embedding of token k

With W_Q = I, W_K<l> is the paper's matrix itself. Layers count from 1, so W_K1 lives in `blocks.0`. A head axis stands
before the last two only when there is more than one head, and a step axis before everything when the source has one.

LayerNorm: x -> gamma * (x - mean x) / |x - mean x| * sqrt(d) + beta. With `fold=True` (the default) its linear part,
centring and gamma, is folded into every matrix that reads a normalised stream, and into w_U for the last LayerNorm;
the division by the norm cannot be folded (it scales all scores of one reader alike, so no argmax over the outputs of
one input moves) and beta, which adds a constant a reader, is left out.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import InputError, require

_MATRIX = re.compile(r"^(?:(W_K|W_V|W_O|Phi_|W_F)(\d+)|(W_F))$")
_EMBEDDING = re.compile(r"^(?:(Phi_|W_V)(\d+) )?(w_E|p|w_U)$")


def memory(source: Any, name: str, *, fold: bool = True) -> Float[Tensor, "*lead d_out d_in"]:
    """The matrix `name` (`W_K1`, `W_O2`, `Phi_1`, `W_V2`, `W_F` ...) of a model or of a (stacked) state dict."""
    weights = _weights(source)
    match = _MATRIX.match(str(name))
    if match is None:
        raise InputError(f"memory: expected W_K, W_V, W_O or Phi_ with a layer's number, or W_F, got {name!r}")
    n_layers = number_of_layers(weights)
    kind, layer = match[1] or match[3], int(match[2] or n_layers)
    require(1 <= layer <= n_layers, "memory", f"a layer from 1 to {n_layers}", repr(name))
    block = f"blocks.{layer - 1}"
    if kind == "W_F":
        require(f"{block}.mlp.W_F" in weights, "memory", "a model with a linear feed-forward in that layer", repr(name))
        return _read_norm(weights, f"{block}.ln2", fold, weights[f"{block}.mlp.W_F"]).mT
    attention = f"{block}.attn"
    one_head = weights[f"{attention}.W_K"].shape[-3] == 1

    def reading(matrix: str) -> Tensor:
        return _read_norm(weights, f"{block}.ln1", fold, weights[f"{attention}.{matrix}"], heads=True)

    if kind == "W_K":
        W_Q, W_K = reading("W_Q"), reading("W_K")
        result = W_K.mT if _is_identity(W_Q) else W_Q @ W_K.mT
    elif kind == "W_V":
        result = reading("W_V").mT
    elif kind == "W_O":
        result = weights[f"{attention}.W_O"].mT
    else:
        result = (reading("W_V") @ weights[f"{attention}.W_O"]).mT
    return result.squeeze(-3) if one_head else result


def embedding(source: Any, name: str, *, fold: bool = True) -> Float[Tensor, "*lead n d"]:
    """Rows of embeddings: `w_E`, `p`, `w_U`, or one of them remapped, as in `Phi_1 w_E` and `W_V2 w_E`."""
    weights = _weights(source)
    match = _EMBEDDING.match(str(name))
    if match is None:
        raise InputError(f"embedding: expected w_E, p or w_U, alone or after Phi_ or W_V with a layer, got {name!r}")
    if match[3] == "w_E":
        rows = weights["embed.W_E"]
    elif match[3] == "p":
        rows = weights["pos_embed.W_pos"]
    else:
        rows = _read_norm(weights, "ln_final", fold, weights["unembed.W_U"]).mT
    if match[1] is None:
        return rows
    remap = memory(weights, match[1] + match[2], fold=fold)
    several_heads = weights[f"blocks.{int(match[2]) - 1}.attn.W_V"].shape[-3] > 1
    return (rows.unsqueeze(-3) if several_heads else rows) @ remap.mT


def number_of_layers(source: Any) -> int:
    weights = _weights(source)
    return 1 + max(int(n.split(".")[1]) for n in weights if n.startswith("blocks."))


def folds_layer_norm(source: Any) -> bool:
    """Whether the matrices of this source have a LayerNorm's centring and gain folded into them."""
    return "blocks.0.ln1.w" in _weights(source)


def _weights(source: Any) -> Mapping[str, Tensor]:
    if isinstance(source, nn.Module):
        return {name: parameter.detach() for name, parameter in source.named_parameters()}
    return source


def _read_norm(weights: Mapping[str, Tensor], norm: str, fold: bool, W: Tensor, *, heads: bool = False) -> Tensor:
    """(I - 11^T/d) diag(gamma) W: the linear part of the LayerNorm in front of W, in row orientation."""
    if not fold or f"{norm}.w" not in weights:
        return W
    gain = weights[f"{norm}.w"].unsqueeze(-1)
    scaled = (gain.unsqueeze(-3) if heads else gain) * W
    return scaled - scaled.mean(-2, keepdim=True)


def _is_identity(W_Q: Tensor) -> bool:
    """Whether W_Q = I at all steps and heads (asked of a W_Q without a step axis only: one that moves is none)."""
    return W_Q.dim() == 3 and W_Q.shape[-1] == W_Q.shape[-2] and bool((torch.eye(W_Q.shape[-1]) == W_Q).all())


def set_memory(model: nn.Module, name: str, W: Float[Tensor, "*head d_out d_in"]) -> None:
    """Write a matrix given in the paper's orientation into the model, in place.

    What `memory(model, name, fold=False)` reads afterwards is W. `W_K<l>` is written through the queries: with W_Q = I
    it becomes W_K itself, otherwise W_K = (W_Q^-1 W)^T, so the heads must be as wide as the model.
    """
    parameters = dict(model.named_parameters())
    match = _MATRIX.match(name)
    if match is None or match[1] == "Phi_":
        raise InputError(f"memory: expected W_K, W_V or W_O with a layer's number, or W_F, to write, got {name!r}")
    kind, layer = match[1] or match[3], int(match[2] or number_of_layers(model))
    block = f"blocks.{layer - 1}"
    target = parameters.get(f"{block}.mlp.W_F" if kind == "W_F" else f"{block}.attn.{kind}")
    if target is None:
        raise InputError(f"memory: expected a matrix of this model to write, got {name!r}")
    W = W.to(target)
    with torch.no_grad():
        if kind == "W_F":
            target.copy_(W.mT)
            return
        rows = W if W.dim() == 3 else W.unsqueeze(0)
        if kind == "W_K":
            W_Q = parameters[f"{block}.attn.W_Q"]
            require(W_Q.shape[-1] == W_Q.shape[-2], "memory", "heads as wide as the model to write a W_K", repr(name))
            identity = torch.equal(W_Q, torch.eye(W_Q.shape[-1]).to(W_Q).expand_as(W_Q))
            target.copy_(rows.mT if identity else torch.linalg.solve(W_Q, rows).mT)
        else:
            target.copy_(rows.mT)
