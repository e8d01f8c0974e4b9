"""What the shortcut computes with: the layers (`layer.py`) and the maps around them as plain functions.

    x       = W_E[token] + W_pos[position]
    FF(x)   = the feed-forward behind its own norm
    logits  = N(x) W_U + b_U                  N: the last norm, or nothing

A network is made from a mapping of weights and a ModelConfig, which needs no TransformerLens, or from a
HookedTransformer that `accepted` allows, whose own modules compute norms, feed-forwards and rotary positions. Every
function takes any number of leading axes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.model.config import ModelConfig
from induction_memory.runner.components import Graph
from induction_memory.runner.layer import Layer, Map
from induction_memory.runner.tail import LinearLayer, ReluLayer, Tail, Through, unless_zero

_EPS = 1e-5  # TransformerLens's default, which `build` keeps


@dataclass(frozen=True, eq=False)
class Network:
    """A transformer as the functions that the shortcut needs."""

    graph: Graph
    layers: tuple[Layer, ...]
    embed: Callable[[Int[Tensor, "batch pos"]], Tensor]
    positions: Callable[[Int[Tensor, "batch pos"]], Tensor] | None
    """The positional embeddings that are added to the stream."""
    unembed: Map
    """Logits of the last stream."""
    tail: Tail | None = None
    """One map from the stream after the last layer's heads to the logits; None if a norm stands in between."""
    tables: tuple[Float[Tensor, "vocab d_model"], Float[Tensor, "n_ctx d_model"]] | None = None
    """W_E and W_pos, if the first layer's heads read their sum without a norm in between."""
    _through: dict[str, Through | None] = field(default_factory=dict, repr=False)

    def __getitem__(self, layer: int) -> Layer:
        """A layer counted from 1."""
        return self.layers[layer - 1]

    def reads(
        self, layer: int, x: Float[Tensor, "batch pos d_model"], tokens: Int[Tensor, "batch pos"], letters: str
    ) -> tuple[Float[Tensor, "batch pos head d_head"], ...]:
        """Queries, keys or values of a layer in an intact run, as the letters say."""
        if layer == 1 and self.tables is not None:
            return self[1].project_embedded(x, tokens, self.tables, letters)
        return self[layer].project(self[layer].norm(x), letters)

    def to_stream(self, layer: int) -> Through | None:
        """W_O of a layer's heads; None if it makes their values wider."""
        return self._once(f"stream {layer}", layer, lambda: self[layer].W_O)

    @property
    def to_logits(self) -> Through | None:
        """The last layer's W_O and the tail; None if the tail is not linear, or makes the heads' values wider."""
        tail, last = self.tail, len(self.layers)
        if tail is None or tail.hidden is not None:
            return None
        return self._once("logits", last, lambda: self[last].W_O @ tail.W)

    def _once(self, name: str, layer: int, matrix: Callable[[], Tensor]) -> Through | None:
        if name not in self._through:
            M, weights = matrix(), self[layer].attention
            fits = M.shape[-1] <= M.shape[-2]
            self._through[name] = Through(name, M, weights["W_V"], weights["b_V"]) if fits else None
        return self._through[name]

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor], config: ModelConfig) -> "Network":
        """The network that a configuration describes; biases that are not given are zero."""
        known = {*config.parameters.values(), *_biases(config)}
        unknown = [name for name in weights if name not in known]
        require(not unknown, "weights", "the parameters of the model's configuration", ", ".join(unknown))
        W_E, W_U = weights["embed.W_E"], weights["unembed.W_U"]
        W_pos, b_U = weights["pos_embed.W_pos"], _bias(weights, "unembed.b_U", W_U, (W_U.shape[-1],))
        norm = _layer_norm(weights, "ln_final", config)
        layers = tuple(_of_weights(weights, config, layer) for layer in range(1, config.n_layers + 1))
        plain = not config.layer_norm and not config.parallel_blocks
        return cls(
            graph=Graph.of_config(config),
            layers=layers,
            embed=lambda tokens: F.embedding(tokens, W_E),
            positions=lambda tokens: W_pos[: tokens.shape[1]].expand(*tokens.shape, -1),
            unembed=_unembedding(norm, W_U, b_U),
            tail=Tail.of(layers[-1].feed_forward, W_U, b_U) if plain else None,
            tables=None if config.layer_norm else (W_E, W_pos),
        )

    @classmethod
    def of_model(cls, model: Any) -> "Network":
        """The network of a HookedTransformer, with the weights that it has now."""
        graph, W_E = Graph.of(model), model.embed.W_E.detach()
        W_U, b_U = model.unembed.W_U.detach(), model.unembed.b_U.detach()
        normed = model.cfg.normalization_type is not None
        norm = _any_axes(model.ln_final) if normed else _same
        layers = tuple(_of_block(block, layer in graph.feed_forwards) for layer, block in enumerate(model.blocks, 1))
        return cls(
            graph=graph,
            layers=layers,
            embed=lambda tokens: F.embedding(tokens, W_E),
            positions=model.pos_embed if graph.positions else None,
            unembed=_unembedding(norm, W_U, b_U),
            tail=None if normed or graph.parallel else Tail.of(layers[-1].feed_forward, W_U, b_U),
            tables=(W_E, model.pos_embed.W_pos.detach()) if graph.positions and not normed else None,
        )


def _unembedding(norm: Map, W_U: Float[Tensor, "d_model vocab"], b_U: Float[Tensor, " vocab"]) -> Map:
    bias = unless_zero(b_U)
    return lambda x: F.linear(norm(x), W_U.T, bias)


def _of_weights(weights: Mapping[str, Tensor], config: ModelConfig, layer: int) -> Layer:
    block = f"blocks.{layer - 1}"
    attention = {f"W_{letter}": weights[f"{block}.attn.W_{letter}"] for letter in "QKVO"}
    heads, d_head, d_model = attention["W_O"].shape
    for letter in "QKV":
        attention[f"b_{letter}"] = _bias(weights, f"{block}.attn.b_{letter}", attention["W_O"], (heads, d_head))
    attention["b_O"] = _bias(weights, f"{block}.attn.b_O", attention["W_O"], (d_model,))
    return Layer(
        attention,
        scale=config.head_dimension**0.5 if config.scale_scores else 1.0,
        norm=_layer_norm(weights, f"{block}.ln1", config),
        feed_forward=_feed_forward(weights, block, config) if config.has_feed_forward(layer) else None,
    )


def _feed_forward(weights: Mapping[str, Tensor], block: str, config: ModelConfig) -> Map:
    norm = _layer_norm(weights, f"{block}.ln2", config)
    if config.feed_forward == "linear":
        return _behind(norm, LinearLayer(weights[f"{block}.mlp.W_F"]))
    assert config.feed_forward == "relu", config.feed_forward
    W_in, W_out = weights[f"{block}.mlp.W_in"], weights[f"{block}.mlp.W_out"]
    b_in = _bias(weights, f"{block}.mlp.b_in", W_in, (W_in.shape[-1],))
    b_out = _bias(weights, f"{block}.mlp.b_out", W_out, (W_out.shape[-1],))
    return _behind(norm, ReluLayer(W_in, b_in, W_out, b_out))


def _behind(norm: Map, feed_forward: Map) -> Map:
    return feed_forward if norm is _same else lambda x: feed_forward(norm(x))


def _layer_norm(weights: Mapping[str, Tensor], name: str, config: ModelConfig) -> Map:
    if not config.layer_norm:
        return _same
    gain, bias = weights[f"{name}.w"], weights[f"{name}.b"]
    return lambda x: F.layer_norm(x, (config.d_model,), gain, bias, _EPS)


def _of_block(block: Any, feed_forward: bool) -> Layer:
    attn = block.attn
    names = [f"{kind}_{letter}" for kind in "Wb" for letter in "QKVO"]
    normed = attn.cfg.normalization_type is not None
    ln1, ln2 = (_any_axes(getattr(block, name, None)) if normed else _same for name in ("ln1", "ln2"))
    return Layer(
        {name: getattr(attn, name).detach() for name in names},
        scale=float(attn.attn_scale),
        norm=ln1,
        feed_forward=_behind(ln2, _feed_forward_of(block.mlp)) if feed_forward else None,
        rotary=attn.apply_rotary if attn.cfg.positional_embedding_type == "rotary" else None,
    )


def _feed_forward_of(mlp: Any) -> Map:
    """The module's own formula where it is a linear map or a plain ReLU layer, otherwise the module itself."""
    from induction_memory.model.building import MLP, LinearFeedForward

    if type(mlp) is LinearFeedForward:
        return LinearLayer(mlp.W_F.detach())
    if type(mlp) is MLP and mlp.act_fn is F.relu:
        return ReluLayer(*(weight.detach() for weight in (mlp.W_in, mlp.b_in, mlp.W_out, mlp.b_out)))
    return _any_axes(mlp)


def _any_axes(module: Any) -> Map:
    """A module that takes [batch, pos, d], on any number of leading axes."""
    return lambda x: module(x) if x.dim() == 3 else module(x.flatten(0, -3)).unflatten(0, x.shape[:-2])


def _same(x: Tensor) -> Tensor:
    return x


def _biases(config: ModelConfig) -> list[str]:
    """The names of the biases that a model of this configuration has."""
    names = [f"blocks.{layer}.attn.b_{letter}" for layer in range(config.n_layers) for letter in "QKVO"]
    if config.feed_forward == "relu":
        layers = [layer for layer in range(config.n_layers) if config.has_feed_forward(layer + 1)]
        names += [f"blocks.{layer}.mlp.b_{side}" for layer in layers for side in ("in", "out")]
    return [*names, "unembed.b_U"]


def _bias(weights: Mapping[str, Tensor], name: str, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return weights[name] if name in weights else torch.zeros(shape, dtype=like.dtype, device=like.device)
