"""The maps of the fast path, from weights and a ModelConfig or from a HookedTransformer.

    x_1     = W_E[token] + W_pos[position]
    q, k, v = N_1(x) W[head] + b[head]                            N_1, N_2, N: the norms, or nothing
    x'      = x + sum over heads of z W_O[head] + b_O
    x_{l+1} = x' + FF(N_2(x')), or x' + FF(N_2(x)) in parallel blocks
    logits  = N(x) W_U + b_U

Weights and a ModelConfig need no TransformerLens. For a HookedTransformer, its modules compute norms, feed-forwards and
rotary positions, with the weights passed in. The maps of a TransformerBridge are a guess, which `choice.py` compares
with its forward.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.func import functional_call

from induction_memory.errors import require
from induction_memory.model.config import ModelConfig
from induction_memory.model.memories import ungrouped
from induction_memory.runner.components import Graph
from induction_memory.runner.weights import EPS

Map = Callable[[Tensor], Tensor]


def same(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The identity, for a missing norm or missing rotary positions."""
    return x


def of_heads(x: Shaped[Tensor, "..."], heads: Sequence[int], axis: int = 0) -> Shaped[Tensor, "..."]:
    """The slices of some heads, counted from 0 and in ascending order, of a tensor with an axis of heads."""
    if len(heads) == x.shape[axis]:
        return x
    return x.index_select(axis, torch.tensor(heads, device=x.device))


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, in TransformerLens's orientation (rows)."""

    attention: Mapping[str, Tensor]
    """W_Q, W_K, W_V [head, d_model, d_head], W_O [head, d_head, d_model], and the biases b_Q ... b_O if present."""
    scale: float
    """The divisor of attention scores."""
    norm: Map
    """The norm in front of the attention."""
    feed_forward: Map | None
    """The feed-forward with its norm; None if the layer has none."""
    rotate: Map = same
    """The rotation of queries or keys [batch, pos, head, d_head] of all positions, if positions are rotary."""

    def project(
        self, x: Float[Tensor, "batch m d_model"], letter: str, heads: Sequence[int]
    ) -> Float[Tensor, "batch m head d_head"]:
        """Queries, keys or values (`Q`, `K` or `V`) of some heads, counted from 0, from a stream before the norm."""
        W, b = self.attention[f"W_{letter}"], self.attention.get(f"b_{letter}")
        if letter == "Q" and self._identity_queries:
            return self.norm(x).unsqueeze(-2)
        W, b = of_heads(W, heads), None if b is None else of_heads(b, heads)
        read = F.linear(self.norm(x), W.mT.flatten(0, 1), None if b is None else b.flatten())
        return read.unflatten(-1, (len(W), -1))

    @cached_property
    def _identity_queries(self) -> bool:
        """Whether the queries of the only head are the normed stream itself."""
        W_Q, b_Q = self.attention["W_Q"], self.attention.get("b_Q")
        return torch.equal(W_Q, torch.eye(W_Q.shape[1]).to(W_Q)[None]) and (b_Q is None or not b_Q.any())

    def combine(self, z: Float[Tensor, "batch m head d_head"]) -> Float[Tensor, "batch m d_model"]:
        """sum over heads of z W_O[head], and b_O."""
        return F.linear(z.flatten(-2), self.attention["W_O"].flatten(0, 1).T, self.attention.get("b_O"))


@dataclass(frozen=True, eq=False)
class Maps:
    """A transformer as plain functions."""

    W_E: Float[Tensor, "vocab d_model"]
    W_pos: Float[Tensor, "n_ctx d_model"] | None
    """The positional embeddings that are added to the stream."""
    layers: Sequence[Layer]
    norm: Map
    """The norm in front of the unembedding."""
    W_U: Float[Tensor, "d_model output"]
    b_U: Float[Tensor, " output"] | None

    def embed(self, tokens: Int[Tensor, "batch pos"]) -> dict[str, Float[Tensor, "batch pos d_model"]]:
        """The embeddings, by TransformerLens's hook names. The first stream is their sum."""
        embedded = {"hook_embed": F.embedding(tokens, self.W_E)}
        if self.W_pos is not None:
            embedded["hook_pos_embed"] = self.W_pos[: tokens.shape[1]].expand(*tokens.shape, -1)
        return embedded

    def unembed(self, x: Float[Tensor, "batch m d_model"]) -> Float[Tensor, "batch m output"]:
        """The logits of the last stream."""
        return F.linear(self.norm(x), self.W_U.T, self.b_U)


def maps_of_config(config: ModelConfig, weights: Mapping[str, Tensor]) -> Maps:
    """The maps of a configuration's model; missing biases are zero."""
    known = set(config.parameters.values())
    for name in weights:
        matrix = name.replace(".b_", ".W_")
        require(matrix in known, "weights", "the parameters of the model's configuration", name)

    def norm(name: str) -> Map:
        if not config.layer_norm:
            return same
        gain, bias = weights[f"{name}.w"], weights[f"{name}.b"]
        return lambda x: F.layer_norm(x, (config.d_model,), gain, bias, EPS)

    def feed_forward(block: str) -> Map:
        before = norm(f"{block}.ln2")
        if config.feed_forward == "linear":
            W_F = weights[f"{block}.mlp.W_F"]
            return lambda x: before(x) @ W_F
        assert config.feed_forward == "relu", config.feed_forward
        W_in, W_out = weights[f"{block}.mlp.W_in"], weights[f"{block}.mlp.W_out"]
        b_in, b_out = weights.get(f"{block}.mlp.b_in"), weights.get(f"{block}.mlp.b_out")
        return lambda x: F.linear(F.linear(before(x), W_in.T, b_in).relu_(), W_out.T, b_out)

    layers, scale = [], config.head_dimension**0.5 if config.scale_scores else 1.0
    for layer in range(1, config.n_layers + 1):
        block = f"blocks.{layer - 1}"
        following = feed_forward(block) if config.has_feed_forward(layer) else None
        layers.append(Layer(_attention(weights, block), scale, norm(f"{block}.ln1"), following))
    W_E, W_pos, W_U = weights["embed.W_E"], weights["pos_embed.W_pos"], weights["unembed.W_U"]
    return Maps(W_E, W_pos, layers, norm("ln_final"), W_U, weights.get("unembed.b_U"))


def maps_of_model(model: Any, weights: Mapping[str, Tensor]) -> Maps:
    """The maps of a HookedTransformer that support.py accepts, with these weights instead of its own."""
    cfg, weights, with_ff = model.cfg, ungrouped(weights), Graph.of(model).feed_forwards

    def module(name: str) -> Map:
        if cfg.normalization_type is None and name.rpartition(".")[2].startswith("ln"):
            return same
        own = model.get_submodule(name)
        given = {key: weights[f"{name}.{key}"] for key, _ in own.named_parameters()}
        return lambda x: functional_call(own, given, (x,)) if given else own(x)

    def feed_forward(block: str) -> Map:
        before, after = module(f"{block}.ln2"), module(f"{block}.mlp")
        return lambda x: after(before(x))

    layers = tuple(
        Layer(
            _attention(weights, f"blocks.{i}"),
            scale=float(block.attn.attn_scale),
            norm=module(f"blocks.{i}.ln1"),
            feed_forward=feed_forward(f"blocks.{i}") if i + 1 in with_ff else None,
            rotate=block.attn.apply_rotary if cfg.positional_embedding_type == "rotary" else same,
        )
        for i, block in enumerate(model.blocks)
    )
    W_E, W_pos, W_U = weights["embed.W_E"], weights.get("pos_embed.W_pos"), weights["unembed.W_U"]
    return Maps(W_E, W_pos, layers, module("ln_final"), W_U, weights.get("unembed.b_U"))


def maps_of_bridge(model: Any, weights: Mapping[str, Tensor]) -> Maps:
    """The maps of a TransformerBridge, with the modules of the transformers model inside it."""
    cfg, weights, with_ff = model.cfg, ungrouped(weights), Graph.of(model).feed_forwards

    def module(place: Any, *names: str) -> Any:
        found = next((getattr(place, name) for name in names if hasattr(place, name)), None)
        return same if found is None else getattr(found, "original_component", found)

    def rotate(x: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_head"]:
        cos, sin = module(model, "rotary_emb")(x, torch.arange(x.shape[1], device=x.device)[None])
        turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
        first, second = turned.chunk(2, dim=-1)
        turned = turned * cos.unsqueeze(2) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(2)
        return torch.cat([turned, rest], dim=-1)

    def layer(number: int, block: Any) -> Layer:
        attention = _attention(weights, f"blocks.{number}")
        for name in ("b_Q", "b_K", "b_V", "b_O"):
            b = getattr(block.attn, name, None)
            if b is not None:  # heads that share keys and values share their biases
                attention[name] = b.detach() if b.dim() == 1 else b.detach().repeat_interleave(cfg.n_heads // len(b), 0)
        before, after = module(block, "ln2", "ln1"), module(block, "mlp")
        return Layer(
            attention,
            scale=float(cfg.attn_scale if cfg.attn_scale > 0 else cfg.d_head**0.5),
            norm=module(block, "ln1"),
            feed_forward=(lambda x: after(before(x))) if number + 1 in with_ff else None,
            rotate=rotate if cfg.positional_embedding_type == "rotary" else same,
        )

    layers = tuple(layer(number, block) for number, block in enumerate(model.blocks))
    W_E, W_pos, b_U = weights["embed.W_E"], weights.get("pos_embed.W_pos"), model.unembed.b_U
    return Maps(W_E, W_pos, layers, module(model, "ln_final"), weights["unembed.W_U"], b_U.detach())


def _attention(weights: Mapping[str, Tensor], block: str) -> dict[str, Tensor]:
    names = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
    return {name: weights[f"{block}.attn.{name}"] for name in names if f"{block}.attn.{name}" in weights}
