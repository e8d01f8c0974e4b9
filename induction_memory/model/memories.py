"""Weights and embeddings in the paper's orientation: every transpose of the package lives in this room.

The paper writes columns, W x; TransformerLens writes rows, x W, with one matrix per head. With rows W_Q, W_K, W_V of
shape [head, d_model, d_head] and W_O of shape [head, d_head, d_model]:

    W_K<l>   = W_Q W_K^T       key-query memory: the score before the softmax is x_q^T W_K<l> x_k (times 1/sqrt(d_head))
    W_V<l>   = W_V^T           [d_head, d_model]
    W_O<l>   = W_O^T           [d_model, d_head]
    Phi_<l>  = W_O<l> W_V<l>   value-output memory: what attending to x adds to the residual stream
    W_F      = W_F^T           linear feed-forward of the last layer (W_F<l> in the others)
    w_E, p, w_U                rows: embedding of token k, of position t, output embedding of token k

The memory W_K<l> is a product; with W_Q = I it is the paper's matrix itself. The parameter W_K alone is what surgery
edits (`associate(..., bare=True)`). Layers count from 1, so W_K1 lives in `blocks.0`.

LayerNorm: x -> gamma * (x - mean x) / |x - mean x| * sqrt(d) + beta. With `fold=True` (the default) its linear part,
centring and gamma, is folded into every matrix that reads a normalised stream, and into w_U for the last LayerNorm. The
division by the norm cannot be folded: it scales all scores of one normalised vector. An argmax over the outputs of one
input does not depend on it, so recall of W_O and Phi is exact. An argmax over keys does, because keys have different
norms: `associations.py` offers recall of W_K with the linear part folded, with the whole norm, and with no norm. beta
adds a constant to what each matrix reads and is left out. An RMSNorm, x -> gamma * x / |x| * sqrt(d), has the same
parts without the centring. W_K<l> leaves out the rotation by rotary positions: it gives the score at distance 0.

Leading axes are step, then one head axis per layer involved. The keys of W_K2 are written by a head of layer 1 and read
by a head of layer 2, so its table of scores has both: [step, earlier head, head, query, key]. The head axes of a matrix
have size one for all layers but its own.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from induction_memory.errors import InputError, UnsupportedError, require

Norm = Literal["folded", "full", "none"]
_AXES_AFTER_HEAD = {"W_K": 2, "W_V": 2, "b_K": 1, "b_V": 1}


class LazyWeights(Mapping[str, Tensor]):
    """Weights by name, each read when it is first used, and kept."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Tensor]) -> None:
        self._names, self._read = dict.fromkeys(names), read
        self._kept: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._kept:
            if name not in self._names:
                raise KeyError(name)
            self._kept[name] = self._read(name)
        return self._kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def ungrouped(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights with `W_K`, `W_V` and their biases per head; the same mapping if no heads are grouped.

    Where heads share keys and values, TransformerLens stores one matrix per group, under `_W_K`, `_W_V`, `_b_K` and
    `_b_V`. Head h uses the matrices of group h // (heads per group). They are repeated on reading.
    """
    if "blocks.0.attn._W_K" not in weights:
        return weights

    def read(name: str) -> Tensor:
        block, _, kind = name.rpartition(".")
        if f"{block}._{kind}" not in weights:
            return weights[name]
        shared, axis = weights[f"{block}._{kind}"], -1 - _AXES_AFTER_HEAD[kind]
        heads = weights[f"{block}.W_Q"].shape[-3]
        return shared.repeat_interleave(heads // shared.shape[axis], dim=axis)

    return LazyWeights([name.replace(".attn._", ".attn.") for name in weights], read)


def head_name(layer: int, head: int) -> str:
    """The name of one head.

    >>> head_name(2, 1)
    'L2H1'
    """
    return f"L{layer}H{head}"


def head_names(layers: tuple[int, ...], n_heads: int) -> list[str]:
    """Names along the head axes of these layers; "" without layers.

    >>> head_names((1, 2), 2)
    ['L1H1>L2H1', 'L1H1>L2H2', 'L1H2>L2H1', 'L1H2>L2H2']
    """
    names = [""]
    for layer in layers:
        names = [f"{earlier}>L{layer}H{h}".lstrip(">") for earlier in names for h in range(1, n_heads + 1)]
    return names


_MATRIX = re.compile(r"^(?:(W_K|W_V|W_O|Phi_|W_F)(\d+)|(W_F))$")
_EMBEDDING = re.compile(r"^((?:(?:Phi_|W_V)\d+ )*)(w_E|p|w_U)$")
_STORED = {"w_E": "embed.W_E", "p": "pos_embed.W_pos", "w_U": "unembed.W_U"}
_AXES = {"W_E": 2, "W_pos": 2, "W_U": 2, "W_Q": 3, "W_K": 3, "W_V": 3, "W_O": 3, "W_F": 2, "W_in": 2, "W_out": 2}
_AXES |= {"w": 1, "b": 1, "b_Q": 2, "b_K": 2, "b_V": 2, "b_O": 1, "b_U": 1, "b_in": 1, "b_out": 1, "eps": 0}


@dataclass(frozen=True)
class Memories:
    """The matrices and embeddings of one model or of stacked weights with fixed axes, each computed once.

        memory     [step, head, d_out, d_in]     W_K1, W_O2, Phi_1 ...
        embedding  [step, head, n, d]            w_E, p, w_U, or remapped: Phi_1 w_E

    Frozen weights, and everything computed from frozen weights alone, have a step axis of length one. Embeddings that
    are not remapped have a head axis of length one.
    """

    weights: Mapping[str, Tensor]
    """TransformerLens's name -> tensor; weights that train have a leading step axis."""
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, kw_only=True)
    """What has been computed already, by name."""
    refusal: str | None = field(default=None, kw_only=True)
    """Why memories cannot be read from these weights; None if they can."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", ungrouped(self.weights))

    @property
    def n_layers(self) -> int:
        return number_of_layers(self.weights)

    @property
    def n_heads(self) -> int:
        return self.weights["blocks.0.attn.W_K"].shape[-3]

    @property
    def d_model(self) -> int:
        return self.weights["embed.W_E"].shape[-1]

    @property
    def vocab_size(self) -> int:
        return self.weights["embed.W_E"].shape[-2]

    def memory(
        self, name: str, layers: tuple[int, ...] | None = None, *, fold: bool = True
    ) -> Float[Tensor, "step *head d_out d_in"]:
        """The matrix `name` per step and head; `layers` adds head axes for these layers. W_F has one head."""
        key = "memory", name, fold
        if key not in self.kept:
            self._require_readable()
            W = _matrix(self.weights, name, fold)
            self.kept[key] = W if W.dim() == 4 else W[None]
        W = self.kept[key]
        return W if layers is None else spread(W, layers, next(iter(layers_of(name)), None))

    def embedding(
        self, name: str, layers: tuple[int, ...] | None = None, norm: Norm = "folded"
    ) -> Float[Tensor, "step *head n d"]:
        """Rows of `w_E`, `p` or `w_U`, remapped by each matrix before it: `W_V2 Phi_1 w_E`.

        They have one head axis per layer in `layers`, by default the layers of the matrices. LayerNorms are folded into
        the matrices, or applied in full to the vectors that each layer reads, or left out.
        """
        layers = (layers_of(name) or (0,)) if layers is None else layers
        key = "rows", name, layers, norm
        if key not in self.kept:
            self._require_readable()
            *remaps, of = name.split(" ")
            rows = _rows(self.weights, of, norm == "folded")
            vectors = spread(rows if rows.dim() == 3 else rows[None], layers)
            for remap in reversed(remaps):
                if norm == "full":
                    vectors = self.normed(f"blocks.{layers_of(remap)[0] - 1}.ln1", vectors)
                vectors = vectors @ self.memory(remap, layers, fold=norm == "folded").mT
            self.kept[key] = vectors
        return self.kept[key]

    def parameter(self, name: str) -> Float[Tensor, "step ..."]:
        """A parameter by TransformerLens's name, always with a step axis."""
        self._require_readable()
        weight = self.weights[name]
        return weight if has_step_axis(name, weight) else weight[None]

    def normed(self, norm: str, rows: Float[Tensor, "step *head n d"]) -> Float[Tensor, "step *head n d"]:
        """The whole LayerNorm `norm` of the model applied to each row; the rows themselves if it has none."""
        if f"{norm}.w" not in self.weights:
            return rows
        gain, eps = _per_row(self.parameter(f"{norm}.w"), rows), float(self.weights.get(f"{norm}.eps", 1e-5))
        if not _centres(self.weights, norm):
            return torch.nn.functional.rms_norm(rows, rows.shape[-1:], eps=eps) * gain
        bias = _per_row(self.parameter(f"{norm}.b"), rows)
        return torch.nn.functional.layer_norm(rows, rows.shape[-1:], eps=eps) * gain + bias

    def centred(self, norm: str, rows: Float[Tensor, "step *head n d"]) -> Float[Tensor, "step *head n d"]:
        """The linear part of the LayerNorm `norm` applied to each row: centring and gain."""
        if f"{norm}.w" not in self.weights:
            return rows
        centre = rows.mean(-1, keepdim=True) if _centres(self.weights, norm) else 0
        return (rows - centre) * _per_row(self.parameter(f"{norm}.w"), rows)

    def once(self, name: Any, compute: Callable[[], Any]) -> Any:
        """The value kept under this name, computed on first use."""
        if name not in self.kept:
            self.kept[name] = compute()
        return self.kept[name]

    def _require_readable(self) -> None:
        if self.refusal is not None:
            raise UnsupportedError(self.refusal)

    def require_layers(self, n: int) -> None:
        if self.n_layers < n:
            raise UnsupportedError(f"needs {n} layers, the model has {self.n_layers}")

    def require_weights(self, name: str, what: str) -> None:
        if name not in self.weights:
            raise UnsupportedError(f"needs {what}, the model has none")


def matrix(source: Any, name: str, *, fold: bool = True) -> Float[Tensor, "*lead d_out d_in"]:
    """The matrix `name` (`W_K1`, `W_O2`, `Phi_1`, `W_V2`, `W_F` ...) of a model or of a (stacked) state dict.

    Before the last two axes there is a head axis if there is more than one head, and before it a step axis if the
    source has one.

    >>> from induction_memory.model.building import build
    >>> from induction_memory.model.config import ModelConfig
    >>> matrix(build(ModelConfig(d_model=16, n_ctx=8), seed=0), "W_O2").shape
    torch.Size([16, 16])
    """
    return _matrix(weights_of(source), name, fold).squeeze(-3)


def embedding(source: Any, name: str, *, fold: bool = True) -> Float[Tensor, "*lead n d"]:
    """Rows of embeddings: `w_E`, `p`, `w_U`, or remapped ones such as `Phi_1 w_E` and `W_V2 w_E`.

    >>> from induction_memory.model.building import build
    >>> from induction_memory.model.config import ModelConfig
    >>> embedding(build(ModelConfig(d_model=16, n_ctx=8), seed=0), "w_E").shape
    torch.Size([65, 16])
    """
    weights = weights_of(source)
    match = _EMBEDDING.match(str(name))
    if match is None:
        raise InputError(f"embedding: expected w_E, p or w_U, alone or after Phi_ or W_V with a layer, got {name!r}")
    rows = _rows(weights, match[2], fold)
    if not match[1]:
        return rows
    rows = rows.unsqueeze(-3)
    for remap in reversed(match[1].split()):
        rows = rows @ _matrix(weights, remap, fold).mT
    return rows.squeeze(-3)


def number_of_layers(weights: Mapping[str, Tensor]) -> int:
    """How many layers have attention weights."""
    n = 0
    while f"blocks.{n}.attn.W_O" in weights:
        n += 1
    require(n > 0, "model", "parameters with TransformerLens's names (blocks.0.attn.W_O ...)", "none of them")
    return n


def weights_of(source: Any) -> Mapping[str, Tensor]:
    """The weights of a model or a mapping, with one matrix per head."""
    if isinstance(source, nn.Module):
        source = {name: parameter.detach() for name, parameter in source.named_parameters()}
    if not (isinstance(source, Mapping) and "embed.W_E" in source):
        raise InputError(
            f"source: expected a TransformerLens model or its weights by name, got {type(source).__name__}"
        )
    return ungrouped(source)


def has_step_axis(name: str, weight: Tensor) -> bool:
    """Whether the parameter has one axis more than in TransformerLens."""
    kind = name.rsplit(".", 1)[-1]
    if kind not in _AXES:
        raise InputError(f"weights: expected parameters of a TransformerLens model, got {name!r}")
    return weight.dim() == _AXES[kind] + 1


def _per_row(vector: Float[Tensor, "step d"], rows: Tensor) -> Tensor:
    return vector.reshape(vector.shape[0], *[1] * (rows.dim() - 2), vector.shape[-1])


def _place(name: str, n_layers: int) -> tuple[str, int]:
    """The kind of matrix and the layer that a name means."""
    match = _MATRIX.match(str(name))
    if match is None:
        raise InputError(f"memory: expected W_K, W_V, W_O or Phi_ with a layer's number, or W_F, got {name!r}")
    kind, layer = match[1] or match[3], int(match[2] or n_layers)
    require(1 <= layer <= n_layers, "memory", f"a layer from 1 to {n_layers}", repr(name))
    return kind, layer


def _matrix(weights: Mapping[str, Tensor], name: str, fold: bool) -> Float[Tensor, "*step head d_out d_in"]:
    """The matrix `name`, always with a head axis (of one for W_F)."""
    kind, layer = _place(name, number_of_layers(weights))
    block = f"blocks.{layer - 1}"
    match kind:
        case "W_F":
            stored = f"{block}.mlp.W_F"
            require(stored in weights, "memory", "a model with a linear feed-forward in that layer", repr(name))
            return _read(weights, stored, fold).mT.unsqueeze(-3)
        case "W_K":
            W_Q, W_K = _read(weights, f"{block}.attn.W_Q", fold), _read(weights, f"{block}.attn.W_K", fold)
            return W_K.mT if _is_identity(W_Q) else W_Q @ W_K.mT
        case "W_V":
            return _read(weights, f"{block}.attn.W_V", fold).mT
        case "W_O":
            return weights[f"{block}.attn.W_O"].mT
        case _:
            return (_read(weights, f"{block}.attn.W_V", fold) @ weights[f"{block}.attn.W_O"]).mT


def _rows(weights: Mapping[str, Tensor], name: str, fold: bool) -> Float[Tensor, "*step n d"]:
    """The rows of `w_E`, `p` or `w_U`."""
    if name not in _STORED:
        raise InputError(f"embedding: expected w_E, p or w_U, alone or after Phi_ or W_V with a layer, got {name!r}")
    return _read(weights, "unembed.W_U", fold).mT if name == "w_U" else weights[_STORED[name]]


def _read(weights: Mapping[str, Tensor], name: str, fold: bool) -> Float[Tensor, "*lead d n"]:
    """(I - 11^T/d) diag(gamma) W: a parameter, with the linear part of the LayerNorm in front of it if `fold`."""
    W, (*block, part, _) = weights[name], name.split(".")
    norm = ".".join((*block, {"attn": "ln1", "mlp": "ln2", "unembed": "ln_final"}[part]))
    if not fold or f"{norm}.w" not in weights:
        return W
    gain = weights[f"{norm}.w"].unsqueeze(-1)
    scaled = (gain.unsqueeze(-3) if part == "attn" else gain) * W
    return scaled - scaled.mean(-2, keepdim=True) if _centres(weights, norm) else scaled


def _centres(weights: Mapping[str, Tensor], norm: str) -> bool:
    """Whether a norm is a LayerNorm, which subtracts the mean; an RMSNorm has no bias and does not."""
    return f"{norm}.b" in weights


def _is_identity(W_Q: Float[Tensor, "*step head d d_head"]) -> bool:
    """Whether W_Q = I at all steps and heads."""
    if W_Q.shape[-1] != W_Q.shape[-2]:
        return False
    return bool((torch.eye(W_Q.shape[-1], dtype=W_Q.dtype, device=W_Q.device) == W_Q).all())


def set_matrix(model: nn.Module, name: str, W: Float[Tensor, "*head d_out d_in"]) -> None:
    """Write a matrix in the paper's orientation into the model, in place.

    Then `matrix(model, name, fold=False)` returns W. For `W_K<l>` the parameter W_K = (W_Q^-1 W)^T is written (W^T if
    W_Q = I), so the heads must be as wide as the model.

    >>> import induction_memory as im
    >>> model = im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> im.model.set_matrix(model, "W_O2", torch.eye(16))
    >>> assert (im.model.matrix(model, "W_O2") == torch.eye(16)).all()
    """
    parameters = dict(model.named_parameters())
    match = _MATRIX.match(name)
    if match is None or match[1] == "Phi_":
        raise InputError(f"memory: expected W_K, W_V or W_O with a layer's number, or W_F, to write, got {name!r}")
    kind, layer = _place(name, number_of_layers(parameters))
    block = f"blocks.{layer - 1}"
    target = parameters.get(f"{block}.mlp.W_F" if kind == "W_F" else f"{block}.attn.{kind}")
    if target is None:
        raise InputError(f"memory: expected a matrix of this model to write, got {name!r}")
    with torch.no_grad():
        rows = (W if kind == "W_F" or W.dim() == 3 else W.unsqueeze(0)).to(target)
        if kind == "W_K":
            W_Q = parameters[f"{block}.attn.W_Q"]
            require(W_Q.shape[-1] == W_Q.shape[-2], "memory", "heads as wide as the model to write a W_K", repr(name))
            rows = rows if _is_identity(W_Q) else torch.linalg.solve(W_Q, rows)
        target.copy_(rows.mT)


def layers_of(*names: str) -> tuple[int, ...]:
    """The layers of the head axes of these matrices and embeddings, in order; W_F has none."""
    return tuple(sorted({*map(int, re.findall(r"(?:W_[KVO]|Phi_)(\d+)", " ".join(names)))}))


def spread(
    X: Float[Tensor, "step *head a b"], layers: tuple[int, ...], layer: int | None = None
) -> Float[Tensor, "step *heads a b"]:
    """X with one head axis per layer in `layers`: its own at the place of `layer`, size one elsewhere. Without a
    `layer`, X has no head axis."""
    shape = [1] * len(layers)
    if layer is not None:
        shape[layers.index(layer)] = X.shape[1]
    return X.reshape(X.shape[0], *shape, *X.shape[-2:])
