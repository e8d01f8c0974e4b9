"""The fast path: activations that a patch cannot change are read from the recording of the intact run.

It returns the same as `hooked`, up to float32 rounding, for every model that support.py accepts. Everything before the
first patched layer of a variant is as recorded. In that layer only the patched heads are recomputed,

    out' = out + sum over those heads of (z' - z) W_O[head],

and everything after it is computed from the new stream. If logits are needed only at some queries, the last layer
computes only those rows. The result is differentiable in the `amount` of a patch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.runner.components import ARROW, Graph, layer_of
from induction_memory.runner.maps import Layer, Maps, of_heads, same
from induction_memory.runner.recording import (
    Patches,
    Recording,
    Runner,
    Variant,
    Via,
    patches_of,
    pattern_name,
    require_tokens,
    take,
)

SEQUENCES = 16
"""Sequences whose patched runs are computed together."""
QUERIES = 64
"""Queries whose attention is computed together, if it is recorded: the keys after the last of them are left out."""


class FastRunner:
    """Runs a HookedTransformer, or weights with their configuration."""

    via: Via = "fast"

    def __init__(
        self,
        graph: Graph,
        n_ctx: int,
        weights: Mapping[str, Tensor],
        maps: Callable[[Mapping[str, Tensor]], Maps],
        other: Callable[[], Runner | None] | None = None,
    ) -> None:
        self.graph, self.n_ctx, self.weights, self._maps = graph, n_ctx, weights, maps
        self._other = other
        """The runner that takes over once the model has changed."""

    @property
    def refusal(self) -> str | None:
        """Memories can be read from every HookedTransformer that the fast path supports."""
        return None

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> Recording:
        runner, other = self, None if self._other is None else self._other()
        if other is not None:
            return other.record(tokens, weights, patterns=patterns)
        if weights:
            runner = FastRunner(self.graph, self.n_ctx, {**self.weights, **weights}, self._maps)
        require_tokens(tokens, self.n_ctx, len(self.weights["embed.W_E"]))
        tokens = tokens.to(self.weights["embed.W_E"].device)
        maps = self._maps(runner.weights)
        with torch.no_grad():
            kept, W_O = maps.embed(tokens), []
            x = reduce(torch.add, kept.values())
            for number, layer in enumerate(maps.layers):
                block = f"blocks.{number}"
                kept[f"{block}.hook_resid_pre"] = x
                for letter in "qkv":
                    kept[f"{block}.attn.hook_{letter}"] = layer.project(x, letter.upper(), range(self.graph.n_heads))
                q, k = layer.rotate(kept[f"{block}.attn.hook_q"]), layer.rotate(kept[f"{block}.attn.hook_k"])
                pattern = None
                if patterns:
                    pattern = q.new_zeros(len(q), q.shape[2], q.shape[1], k.shape[1])
                    kept[pattern_name(number + 1)] = pattern
                z = attend(q, k, kept[f"{block}.attn.hook_v"], layer.scale, pattern=pattern)
                kept[f"{block}.attn.hook_z"] = z
                W_O.append(layer.attention["W_O"])
                kept[f"{block}.hook_attn_out"] = out = layer.combine(z)
                after = x + out
                if layer.feed_forward is not None:
                    kept[f"{block}.hook_mlp_out"] = out = layer.feed_forward(x if self.graph.parallel else after)
                    after = after + out
                kept[f"{block}.hook_resid_post"] = x = after
            return Recording(runner, tokens, kept, maps.unembed(x), W_O, maps)

    def patterns(self, tokens: Int[Tensor, "batch pos"]) -> list[Float[Tensor, "batch head query key"]]:
        recording = self.record(tokens, patterns=True)
        return [recording.pattern(layer) for layer in range(1, self.graph.n_layers + 1)]

    def pattern(self, recording: Recording, layer: int) -> Float[Tensor, "batch head query key"]:
        assert recording.maps is not None
        weights = recording.maps.layers[layer - 1]
        with torch.no_grad():
            q, k = (weights.rotate(recording.layer(layer, f"attn.hook_{one}")) for one in "qk")
            return _attention(q, k, weights.scale, torch.arange(q.shape[1], device=q.device))

    def run(
        self, recording: Recording, variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> Iterator[Float[Tensor, "batch m vocab"]]:
        """Some sequences at a time, so that the activations of a layer fit into the processor's cache.

        A variant continues from the last layer up to which it has the same patches as the previous variant.
        """
        if len(recording.tokens) > SEQUENCES:
            parts = list[Iterator[Tensor]]()
            for first in range(0, len(recording.tokens), SEQUENCES):
                part = slice(first, first + SEQUENCES)
                some = recording.of_sequences(part)
                parts.append(self.run(some, patches_of(variants, part), None if queries is None else queries[part]))
            yield from map(torch.cat, zip(*parts, strict=True))
            return
        reached: list[_PatchedRun] = []
        for variant in variants:
            for layer in range(1, self.graph.n_layers + 1):
                upstream = _upstream(variant, layer)
                if reached[layer - 1 :] and reached[layer - 1].upstream == upstream:
                    continue
                del reached[layer - 1 :]
                before = reached[-1] if reached else None
                reached.append(_PatchedRun(recording, variant, queries, layer, upstream, before))
            yield reached[-1].logits(variant)


def _upstream(variant: Variant, layer: int) -> tuple[bool, list[tuple], set[str]]:
    """A variant up to the attention of a layer: whether the stream has changed there, its patches before the heads'
    output, and the sources of its edges.
    """
    changed, early, sources = False, list[tuple](), set[str]()
    for patch in variant:
        source, _, name = patch.site.rpartition(ARROW)
        first = math.inf if name == "out" else layer_of(name)  # of the site or of the edge's source; 0 for embeddings
        changed |= first < layer
        if first < layer + ("." in name):
            early.append((patch.site, *patch.replacement))
        if source:
            sources.add(source)
    return changed, early, sources


class _PatchedRun:
    """A run with the patches of a variant up to the attention of a layer, continued from the run up to the previous
    layer."""

    def __init__(
        self,
        recording: Recording,
        variant: Variant,
        queries: Int[Tensor, "batch m"] | None,
        layer: int,
        upstream: tuple[bool, list[tuple], set[str]],
        before: "_PatchedRun | None",
    ) -> None:
        assert recording.maps is not None
        self.upstream = upstream
        self.changed = upstream[0]
        """Whether the stream differs from the recorded one."""
        self.recording, self.maps, self.graph, self.queries = recording, recording.maps, recording.graph, queries
        self.patches = Patches(variant, recording.at) if before is None else before.patches.followed_by(variant)
        self.x = recording.layer(layer, "hook_resid_pre")
        if before is not None and self.changed:
            self.x = before._after_layer(layer - 1, self.patches)
        for name in ("embed", "pos") if before is None else ():
            if name in self.patches.nodes:
                own = recording.at(name)
                self.x = self.x + (self.patches.write(name, own) - own)
        self._attend(layer)

    def logits(self, variant: Variant) -> Float[Tensor, "batch m vocab"]:
        """The logits of a variant that agrees with this run up to the attention of the last layer."""
        patches = self.patches.followed_by(variant)
        return self.maps.unembed(patches.read("out", self._after_layer(self.graph.n_layers, patches)))

    def _attend(self, layer: int) -> None:
        """Compute z of the heads that a patch changes; in the last layer, only at the queries."""
        weights, patches, heads = self.maps.layers[layer - 1], self.patches, self.graph.heads_of(layer)
        patched, self.computed = patches.nodes.keys() | patches.edges.keys(), list[int]()
        for h, head in enumerate(heads):
            if self.changed or not patched.isdisjoint((f"{head}.q", f"{head}.k", f"{head}.v")):
                self.computed.append(h)
        queries = self.queries if layer == self.graph.n_layers else None
        if not self.computed:
            self._narrow(queries)
        elif queries is None or weights.rotate is not same:  # rotary positions need every row
            q, k, v = self._read(layer, "q"), self._read(layer, "k"), self._read(layer, "v")
            q = weights.rotate(q) if queries is None else _take_heads(weights.rotate(q), queries)
            self._narrow(queries)
            self.z = attend(q, weights.rotate(k), v, weights.scale, queries)
        else:
            few = queries.shape[1] <= weights.attention["W_Q"].shape[-1]
            k, v = self._read(layer, "k", stream=few), self._read(layer, "v", stream=few)
            self._narrow(queries)
            self.z = attend_from(weights, self.computed, self._read(layer, "q"), k, v, queries)

    def _read(
        self, layer: int, letter: str, *, stream: bool = False
    ) -> Float[Tensor, "batch m head d_head"] | Float[Tensor, "batch m d_model"]:
        """Queries, keys or values of the heads to compute, with their patches.

        With `stream`, return the normed stream instead, if all these heads read the same one and no later patch or
        recording needs the heads' own values.
        """
        weights, patches = self.maps.layers[layer - 1], self.patches
        sites = [f"L{layer}H{h + 1}.{letter}" for h in self.computed]
        alike: dict[tuple, list[int]] = {}
        for h, site in zip(self.computed, sites, strict=True):  # heads with the same patched edges read one stream
            edges = tuple((source, *patch.replacement) for source, patch in patches.edges.get(site, ()))
            alike.setdefault(edges, []).append(h)
        together = len(alike) == 1 and patches.nodes.keys().isdisjoint(sites)
        found = dict[int, Tensor]()
        for edges, heads in alike.items():
            if edges or self.changed:
                x = patches.read(f"L{layer}H{heads[0] + 1}.{letter}", self.x)
                if stream and together:
                    return weights.norm(x)
                own = weights.project(x, letter.upper(), heads)
            else:
                own = of_heads(self._recorded(layer, f"attn.hook_{letter}"), heads, -2)
            if together:
                return own
            found |= zip(heads, own.unbind(-2), strict=True)
        by_head = [patches.write(site, found[h]) for h, site in zip(self.computed, sites, strict=True)]
        return torch.stack(by_head, dim=-2)

    def _narrow(self, queries: Int[Tensor, "batch m"] | None) -> None:
        if queries is not None:
            self.patches.narrow(queries)
            self.x = take(self.x, queries)

    def _after_layer(self, layer: int, patches: Patches) -> Float[Tensor, "batch m d_model"]:
        """The stream after a layer, from the stream before it and the z of its heads."""
        weights, heads, computed = self.maps.layers[layer - 1], self.graph.heads_of(layer), self.computed
        W_O = weights.attention["W_O"]
        if len(computed) == len(heads):
            out = weights.combine(self.z)
        else:
            out = self._recorded(layer, "hook_attn_out")
            if computed:
                z = of_heads(self._recorded(layer, "attn.hook_z"), computed, -2)
                out = out + (self.z - z).flatten(-2) @ of_heads(W_O, computed).flatten(0, 1)
        for h, head in enumerate(heads):
            if head in patches.nodes or head in patches.sources:
                own = self.z[..., computed.index(h), :] @ W_O[h] if h in computed else patches.recorded(head)
                written = patches.write(head, own)
                out = out if written is own else out + (written - own)
        after = self.x + out
        if weights.feed_forward is None:
            return after
        name = f"FF{layer}"
        moved = self.changed if self.graph.parallel else bool(computed) or any(head in patches.nodes for head in heads)
        if moved or name in patches.edges:
            own = weights.feed_forward(patches.read(name, self.x if self.graph.parallel else after))
        else:
            own = self._recorded(layer, "hook_mlp_out")
        return after + patches.write(name, own)

    def _recorded(self, layer: int, hook: str) -> Tensor:
        value, rows = self.recording.layer(layer, hook), self.patches.rows
        if rows is None:
            return value
        return take(value, rows) if value.dim() == 3 else _take_heads(value, rows)


def _take_heads(x: Float[Tensor, "batch pos head d"], rows: Int[Tensor, "batch m"]) -> Float[Tensor, "batch m head d"]:
    return take(x.flatten(-2), rows).unflatten(-1, x.shape[-2:])


def attend(
    q: Float[Tensor, "batch m head d_head"],
    k: Float[Tensor, "batch pos head d_head"],
    v: Float[Tensor, "batch pos head d_value"],
    scale: float,
    queries: Int[Tensor, "batch m"] | None = None,
    *,
    pattern: Float[Tensor, "batch head pos pos"] | None = None,
) -> Float[Tensor, "batch m head d_value"]:
    """Causal attention, softmax(q k^T / scale) v, with q at all positions or at `queries`.

    The attention of all positions is written into `pattern`, which must be zero.
    """
    if queries is not None:
        return torch.einsum("bhqk,bkhd->bqhd", _attention(q, k, scale, queries), v)
    if pattern is not None:
        z = []
        for rows in torch.arange(q.shape[1], device=q.device).split(QUERIES):
            first, last = int(rows[0]), int(rows[-1]) + 1
            pattern[:, :, first:last, :last] = some = _attention(q[:, first:last], k[:, :last], scale, rows)
            z.append(some @ v[:, :last].transpose(1, 2))
        return torch.cat(z, dim=2).transpose(1, 2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / scale).transpose(1, 2)


def attend_from(
    weights: Layer,
    heads: Sequence[int],
    q: Float[Tensor, "batch m head d_head"],
    k: Float[Tensor, "batch pos head d_head"] | Float[Tensor, "batch pos d_model"],
    v: Float[Tensor, "batch pos head d_head"] | Float[Tensor, "batch pos d_model"],
    queries: Int[Tensor, "batch m"],
) -> Float[Tensor, "batch m head d_head"]:
    """`attend` for few queries of some heads; k and v may be the normed streams instead.

    In that case q . k_s = (W_K q) . x_s + constant, and sum of A v = W_V^T (sum of A x) + b_V, without keys or values.
    """
    q = q.transpose(1, 2)
    if k.dim() == 3:
        read = q @ of_heads(weights.attention["W_K"], heads).mT
        scores = (read.flatten(1, 2) @ k.mT).unflatten(1, read.shape[1:3])
    else:
        scores = q @ k.permute(0, 2, 3, 1)
    pattern = _softmax(scores / weights.scale, queries)
    if v.dim() == 4:
        return torch.einsum("bhqk,bkhd->bqhd", pattern, v)
    attended = (pattern.flatten(1, 2) @ v).unflatten(1, pattern.shape[1:3])
    z = (attended @ of_heads(weights.attention["W_V"], heads)).transpose(1, 2)
    b_V = weights.attention.get("b_V")
    return z if b_V is None else z + of_heads(b_V, heads)


def _attention(
    q: Float[Tensor, "batch m head d_head"],
    k: Float[Tensor, "batch pos head d_head"],
    scale: float,
    queries: Int[Tensor, "*batch m"],
) -> Float[Tensor, "batch head m pos"]:
    """softmax over the keys s <= t of q_t . k_s / scale, for queries at the positions t."""
    return _softmax((q.transpose(1, 2) / scale) @ k.permute(0, 2, 3, 1), queries)


def _softmax(
    scores: Float[Tensor, "batch head m pos"], queries: Int[Tensor, "*batch m"]
) -> Float[Tensor, "batch head m pos"]:
    """softmax over the keys up to each query."""
    later = torch.arange(scores.shape[-1], device=scores.device) > queries[..., None]
    return scores.masked_fill_(later.unsqueeze(-3), -torch.inf).softmax(-1)
