"""What the shortcut computes with: the layers (`layer.py`) and the maps around them as plain functions.

    x       = W_E[token] + W_pos[position]
    FF(x)   = the feed-forward behind its own norm
    logits  = N(x) W_U + b_U                  N: the last norm, or nothing

A network is made from a mapping of weights and a ModelConfig, which needs no TransformerLens, or from a
HookedTransformer that `accepted` allows, whose own modules compute norms, feed-forwards and rotary positions. Every
function takes any number of leading axes.

One layer as the shortcut computes it.

    q, k, v = N_1(x) W[head] + b[head]        N_1: the norm in front of the attention, or nothing
    out     = sum over heads of z W_O[head] + b_O

Every function takes any number of leading axes.

What follows the heads of the last layer, as one map from the stream to the logits.

    tail(x) = x W + b                                          nothing follows, or a linear feed-forward
    tail(x) = x W + b + relu(x W_in + b_in) W_2 + b_2          a ReLU layer follows: W = W_U, W_2 = W_out W_U

This takes fewer multiplications than one matrix after the other, because the vocabulary is small. A norm allows no such
map. If the tail is linear, the output of each head can be read through it as well (`Through`).

Attention on many runs at once: a variant axis before the batch. Nothing here knows of patches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.model.config import ModelConfig
from induction_memory.runner.components import Graph

ROWS_AT_ONCE = 2048  # rows of a hidden layer, which then fits the CPU cache


def unless_zero(bias: Tensor) -> Tensor | None:
    """The bias for F.linear, None if it is zero: adding zeros would cost a pass over the whole output."""
    return bias if bool(bias.any()) else None


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """x -> x W_F."""

    W_F: Float[Tensor, "d d_out"]

    def __call__(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d_out"]:
        return x @ self.W_F


@dataclass(frozen=True, eq=False)
class ReluLayer:
    """x -> relu(x W_in + b_in) W_out + b_out."""

    W_in: Float[Tensor, "d d_mlp"]
    b_in: Float[Tensor, " d_mlp"]
    W_out: Float[Tensor, "d_mlp d_out"]
    b_out: Float[Tensor, " d_out"]

    def __call__(self, x: Float[Tensor, "*lead d"]) -> Float[Tensor, "*lead d_out"]:
        b_in, b_out = self._biases
        rows = x.reshape(-1, x.shape[-1]).split(ROWS_AT_ONCE)
        parts = [F.linear(F.linear(part, self.W_in.T, b_in).relu_(), self.W_out.T, b_out) for part in rows]
        return (torch.cat(parts) if len(parts) > 1 else parts[0]).view(*x.shape[:-1], -1)

    def before(self, W: Float[Tensor, "d_out other"]) -> "ReluLayer":
        """The layer followed by a linear map."""
        return ReluLayer(self.W_in, self.b_in, self.W_out @ W, self.b_out @ W)

    @cached_property
    def _biases(self) -> tuple[Tensor | None, Tensor | None]:
        return unless_zero(self.b_in), unless_zero(self.b_out)


@dataclass(frozen=True, eq=False)
class Tail:
    """The logits of the stream after the last layer's heads."""

    W: Float[Tensor, "d_model vocab"]
    b: Float[Tensor, " vocab"]
    hidden: ReluLayer | None = None

    @classmethod
    def of(
        cls,
        feed_forward: Callable[[Tensor], Tensor] | None,
        W_U: Float[Tensor, "d_model vocab"],
        b_U: Float[Tensor, " vocab"],
    ) -> "Tail | None":
        """The last feed-forward and the unembedding; None for a feed-forward of another kind."""
        match feed_forward:
            case None:
                return cls(W_U, b_U)
            case LinearLayer():
                return cls(W_U + feed_forward.W_F @ W_U, b_U)
            case ReluLayer():
                return cls(W_U, b_U, feed_forward.before(W_U))
            case _:
                return None

    def __call__(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead vocab"]:
        straight = F.linear(x, self.W.T, self._bias)
        return straight if self.hidden is None else straight + self.hidden(x)

    @cached_property
    def _bias(self) -> Tensor | None:
        return unless_zero(self.b)


@dataclass(frozen=True, eq=False)
class Through:
    """The map M that reads the output of a layer's heads, if M makes it no wider than the values."""

    name: str
    M: Float[Tensor, "head d_head d_out"]
    W_V: Float[Tensor, "head d_model d_head"]
    b_V: Float[Tensor, "head d_head"]

    def values(self, x: Float[Tensor, "*lead d_model"]) -> Float[Tensor, "*lead head d_out"]:
        """(x W_V + b_V) M for each head of a normed stream x, in one multiplication."""
        W, b = self._folded
        return F.linear(x, W, b).unflatten(-1, (len(self.M), -1))

    @cached_property
    def _folded(self) -> tuple[Tensor, Tensor | None]:
        return (self.W_V @ self.M).mT.flatten(0, 1), unless_zero((self.b_V.unsqueeze(-2) @ self.M).flatten())


Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, in TransformerLens's orientation (rows)."""

    attention: Mapping[str, Tensor]
    """W_Q, W_K, W_V [head, d_model, d_head], W_O [head, d_head, d_model], and the biases b_Q ... b_O."""
    scale: float
    """What attention scores are divided by."""
    norm: Map
    """The norm in front of the attention."""
    feed_forward: Map | None
    """The feed-forward with its norm; None if the layer has none."""
    rotary: Map | None = None
    """Turns queries or keys [batch, pos, head, d_head] by their position; None without rotary positions."""
    _stacked: dict[str, tuple[str, Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        return self.attention["W_O"]

    def project(
        self, x: Float[Tensor, "*lead d_model"], letters: str
    ) -> tuple[Float[Tensor, "*lead head d_head"], ...]:
        """Queries, keys or values of a normed stream, as the letters say, in one multiplication.

        A matrix that is the identity, like the paper's W_Q, is not multiplied.
        """
        free, W, b = self._matrices(letters)
        return self._split(x, letters, F.linear(x, W, b) if len(free) < len(letters) else None)

    def project_embedded(
        self,
        x: Float[Tensor, "batch pos d_model"],
        tokens: Int[Tensor, "batch pos"],
        tables: tuple[Float[Tensor, "vocab d_model"], Float[Tensor, "n_ctx d_model"]],
        letters: str,
    ) -> tuple[Float[Tensor, "batch pos head d_head"], ...]:
        """The same for x = W_E[token] + W_pos[position], by multiplying the tables instead of x."""
        (W_E, W_pos), (free, W, b) = tables, self._matrices(letters)
        if len(free) == len(letters):
            return self._split(x, letters, None)
        read = F.embedding(tokens, F.linear(W_E, W)).add_(F.linear(W_pos[: tokens.shape[1]], W, b))
        return self._split(x, letters, read)

    def _split(
        self, x: Float[Tensor, "*lead d_model"], letters: str, multiplied: Float[Tensor, "*lead d"] | None
    ) -> tuple[Float[Tensor, "*lead head d_head"], ...]:
        """One tensor per letter: x itself if the matrix is the identity, otherwise a part of one multiplication."""
        free, shape = self._matrices(letters)[0], self.attention["b_Q"].shape
        parts = iter(() if multiplied is None else multiplied.chunk(len(letters) - len(free), dim=-1))
        return tuple(x.unsqueeze(-2) if letter in free else next(parts).unflatten(-1, shape) for letter in letters)

    def _matrices(self, letters: str) -> tuple[str, Tensor, Tensor | None]:
        if letters not in self._stacked:
            self._stacked[letters] = self._stack(letters)
        return self._stacked[letters]

    def project_head(self, x: Float[Tensor, "*lead d_model"], letter: str, head: int) -> Float[Tensor, "*lead d_head"]:
        """`project` for one head and one letter."""
        if letter in self._free:
            return x
        return x @ self.attention[f"W_{letter.upper()}"][head] + self.attention[f"b_{letter.upper()}"][head]

    def combine(self, z: Float[Tensor, "*lead head d_head"]) -> Float[Tensor, "*lead d_model"]:
        """sum over heads of z W_O[head], and b_O."""
        return F.linear(z.flatten(-2), self.W_O.flatten(0, 1).T, self._b_O)

    @property
    def writes_one_head(self) -> bool:
        """Whether the layer's output is that of a single head: it has one head and no bias."""
        return len(self.W_O) == 1 and self._b_O is None

    def rotated(
        self, x: Float[Tensor, "variant batch pos head d_head"]
    ) -> Float[Tensor, "variant batch pos head d_head"]:
        """Queries or keys of all positions as attention compares them."""
        return x if self.rotary is None else self.rotary(x.flatten(0, 1)).view_as(x)

    @cached_property
    def _b_O(self) -> Tensor | None:
        return unless_zero(self.attention["b_O"])

    @cached_property
    def _free(self) -> str:
        """The letters whose matrix is the identity."""
        return "".join(
            letter
            for letter in "qkv"
            if _is_identity(self.attention[f"W_{letter.upper()}"], self.attention[f"b_{letter.upper()}"])
        )

    def _stack(self, letters: str) -> tuple[str, Tensor, Tensor | None]:
        """The letters whose matrix is the identity, and the stacked matrices and biases of the other letters."""
        weights = {one: (self.attention[f"W_{one.upper()}"], self.attention[f"b_{one.upper()}"]) for one in letters}
        free = "".join(letter for letter in letters if letter in self._free)
        rest = [weights[letter] for letter in letters if letter not in free]
        if not rest:
            return free, torch.empty(0), None
        bias = unless_zero(torch.cat([b.flatten() for _, b in rest]))
        return free, torch.cat([W.mT.flatten(0, 1) for W, _ in rest]), bias


def _is_identity(W: Float[Tensor, "head d_model d_head"], b: Float[Tensor, "head d_head"]) -> bool:
    if len(W) > 1 or W.shape[1] != W.shape[2] or W[0, 0, 0] != 1 or b.any():
        return False
    return torch.equal(W[0], torch.eye(W.shape[1], dtype=W.dtype, device=W.device))


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


WIDEST = 40.0  # range of scores whose exponentials can be added up in float32 without loss
BLOCK = 64  # queries whose attention is computed at once on a CPU; faster there than the fused kernel
SCORES_AT_ONCE = 2**18  # attention scores in one block


def attend(
    q: Float[Tensor, "variant batch m head d_head"],
    k: Float[Tensor, "variant batch pos head d_head"],
    v: Float[Tensor, "variant batch pos head d_out"],
    scale: float,
    queries: Int[Tensor, "batch m"] | None = None,
) -> Float[Tensor, "variant batch m head d_out"]:
    """Causal attention, softmax(q k^T / scale) v, where the q are those of all positions or of `queries`."""
    variants, _, pos = k.shape[:3]
    q, k, v = (rearrange(t, "variant batch pos head d -> (variant batch) head pos d") for t in (q, k, v))
    if queries is not None:
        later = torch.arange(pos, device=k.device) > queries[..., None]
        later = repeat(later, "batch query key -> (variant batch) 1 query key", variant=variants)
        z = ((q / scale) @ k.mT).masked_fill_(later, -torch.inf).softmax(-1) @ v
    elif k.device.type == "cpu" and pos > BLOCK:
        z = _causal(q, k, v, scale)
    else:
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / scale)
    return rearrange(z, "(variant batch) head pos d -> variant batch pos head d", variant=variants)


def _causal(
    q: Float[Tensor, "batch head pos d_head"],
    k: Float[Tensor, "batch head pos d_head"],
    v: Float[Tensor, "batch head pos d_out"],
    scale: float,
) -> Float[Tensor, "batch head pos d_out"]:
    """Causal attention by blocks of queries."""
    q, k, v, heads = (*(one.flatten(0, 1) for one in (q, k, v)), q.shape[1])
    z = q.new_empty(*q.shape[:2], v.shape[-1])
    for some, start, end, weights in _blocks(q, k, scale):
        z[some, start:end] = weights @ v[some, :end]
    return z.unflatten(0, (-1, heads))


def _blocks(
    q: Float[Tensor, "n pos d_head"], k: Float[Tensor, "n pos d_head"], scale: float
) -> Iterator[tuple[slice, int, int, Float[Tensor, "some query key"]]]:
    """The attention of queries start to end to the keys before end, for a few heads and sequences at a time.

    Later keys are not computed, and the scores stay in the CPU cache.
    """
    pos = q.shape[1]
    later = torch.full((BLOCK, BLOCK), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
    none, at_once = q.new_zeros(1), max(1, SCORES_AT_ONCE // (BLOCK * pos))
    for first in range(0, len(q), at_once):
        some = slice(first, first + at_once)
        queries, keys = q[some], k[some].mT
        for start in range(0, pos, BLOCK):
            end = min(start + BLOCK, pos)
            scores = torch.baddbmm(none, queries[:, start:end], keys[..., :end], beta=0, alpha=1 / scale)
            scores[..., start:].add_(later[: end - start, : end - start])
            yield some, start, end, scores.softmax(-1)


def pattern(
    q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch pos head d_head"], scale: float
) -> Float[Tensor, "batch head pos pos"]:
    """The attention itself: softmax over the keys s <= t of q_t . k_s / scale."""
    return pattern_and_output(q, k, q[..., :0], scale)[0]


def pattern_and_output(
    q: Float[Tensor, "batch pos head d_head"],
    k: Float[Tensor, "batch pos head d_head"],
    v: Float[Tensor, "batch pos head d_out"],
    scale: float,
) -> tuple[Float[Tensor, "batch head pos pos"], Float[Tensor, "batch pos head d_out"]]:
    """The attention, and the values averaged with it."""
    heads, pos = q.shape[2], q.shape[1]
    q, k, v = (rearrange(one, "batch pos head d -> (batch head) pos d") for one in (q, k, v))
    weights, z = q.new_empty(len(q), pos, pos), torch.empty_like(v)
    for some, start, end, block in _blocks(q, k, scale):
        weights[some, start:end, :end], weights[some, start:end, end:] = block, 0.0
        z[some, start:end] = block @ v[some, :end]
    return weights.unflatten(0, (-1, heads)), rearrange(z, "(batch head) pos d -> batch pos head d", head=heads)


def weigh(
    pattern: Float[Tensor, "batch query key"], v: Float[Tensor, "batch pos d_head"]
) -> Float[Tensor, "batch query d_head"]:
    """sum over s <= t of pattern[t, s] v_s, by blocks of queries, so that later keys are not multiplied."""
    if pattern.shape[1] != v.shape[1]:
        return pattern @ v
    ends = [min(start + BLOCK, v.shape[1]) for start in range(0, v.shape[1], BLOCK)]
    starts = range(0, v.shape[1], BLOCK)
    return torch.cat([pattern[:, a:b, :b] @ v[:, :b] for a, b in zip(starts, ends, strict=True)], dim=1)


def running_mean(
    v: Float[Tensor, "*lead pos d_head"], weights: Float[Tensor, "*lead pos"] | None = None
) -> Float[Tensor, "*lead pos d_head"]:
    """The output of a head whose scores do not depend on the query: the mean of the values so far.

    The weights are exp(score). Without weights, for keys that are all the same, it is the plain mean.
    """
    if weights is None:
        return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1, device=v.device).unsqueeze(-1)
    return (v * weights.unsqueeze(-1)).cumsum(-2) / weights.cumsum(-1).unsqueeze(-1)


def without_attention(
    same: str, read: Sequence[Float[Tensor, "*lead pos _"]], scale: float
) -> Float[Tensor, "*lead pos d_out"] | None:
    """z of a head whose values, keys or queries (`same`) are equal at all positions; None if it needs attention.

    With equal values z is the value, with equal keys the running mean, with equal queries a weighted running mean.
    """
    v = read[-1]
    if same == "v":
        return v
    if same == "k":
        return running_mean(v)
    if same == "q":
        q, k, _ = read
        scores = (k @ q[..., 0, :, None]).squeeze(-1) / scale
        if float((scores.max() - scores.min()).detach()) < WIDEST:
            return running_mean(v, (scores - scores.max()).exp())
    return None


def stacked(variants: Sequence[Tensor]) -> Tensor:
    """torch.stack(variants), without a copy if there is only one."""
    return torch.stack(tuple(variants)) if len(variants) > 1 else variants[0].unsqueeze(0)


def take(x: Float[Tensor, "*lead pos d"] | Bool[Tensor, "*lead pos d"], positions: Int[Tensor, "..."]) -> Tensor:
    """Rows of x [(variant) batch pos d] at the positions [(variant) batch m]."""
    index = positions.expand(*x.shape[:-2], -1).unsqueeze(-1)
    return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1]))
