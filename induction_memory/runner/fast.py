"""The shortcut: many patched runs in one batch, nothing computed twice.

It returns the same as `hooked`, up to float32 rounding, for every model that `accepted` allows. A patch puts a value at
a site (variants.py) and everything downstream is recomputed. The variants of a call are stacked on a new first axis. Up
to the first patched place everything is read from the recording of the intact run. After it, only what has changed is
computed:

- an edge into the keys of a head costs those keys, that head's attention and what follows;
- a patch of a few positions recomputes queries, keys and values there only, in the layer that reads it first;
- where the logits are wanted at some queries only, the last layer computes those rows only.

It differentiates in the `amount` of a patch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from induction_memory.model.config import ModelConfig
from induction_memory.model.names import head_name
from induction_memory.runner import network as attention
from induction_memory.runner.batched_variants import parts
from induction_memory.runner.components import ARROW, Graph, head_of, layer_of
from induction_memory.runner.network import Layer, Network
from induction_memory.runner.parameters import parameters
from induction_memory.runner.recording import Patch, Recording, Variant, Via, require_length
from induction_memory.runner.swapped_weights import replaced

WORTH_A_PATTERN = 3  # the attention of a layer is kept if at least this many variants patch only values in it
MOST_PATTERN = 2**25  # and has at most this many entries
TOKENS_AT_ONCE = 4096  # tokens of all variants in one pass: large matrix products that still fit the CPU caches


Networks = Callable[[Mapping[str, Tensor]], AbstractContextManager[Network]]
"""Weights that stand in for others -> the network with them, valid inside the block."""


class FastRunner:
    """Runs a HookedTransformer, or weights with their configuration."""

    via: Via = "fast"

    def __init__(
        self,
        graph: Graph,
        n_ctx: int,
        networks: Networks,
        weights: Mapping[str, Tensor],
        swapped: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.graph, self.n_ctx = graph, n_ctx
        self._networks, self._weights, self._swapped = networks, weights, swapped or {}

    @classmethod
    def of_model(cls, model: nn.Module) -> "FastRunner":
        """Runs a HookedTransformer that `accepted` allows, with the weights that it has at the time."""

        @contextmanager
        def networks(swapped: Mapping[str, Tensor]) -> Iterator[Network]:
            with replaced(model, swapped):
                yield Network.of_model(model)

        cfg: Any = model.cfg
        return cls(Graph.of(model), cfg.n_ctx, networks, parameters(model))

    @classmethod
    def of_weights(cls, weights: Mapping[str, Tensor], config: ModelConfig) -> "FastRunner":
        """Runs the model that a configuration describes, without TransformerLens."""

        @contextmanager
        def networks(swapped: Mapping[str, Tensor]) -> Iterator[Network]:
            yield Network.of_weights({**weights, **swapped}, config)

        return cls(Graph.of_config(config), config.n_ctx, networks, weights)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {**self._weights, **self._swapped} if self._swapped else self._weights

    @property
    def refusal(self) -> None:
        """Always None: memories can be read from every model that `accepted` allows."""
        return None

    def record(
        self, tokens: Int[Tensor, "batch pos"], weights: Mapping[str, Tensor] | None = None, *, patterns: bool = False
    ) -> Recording:
        runner = self
        if weights:
            runner = FastRunner(self.graph, self.n_ctx, self._networks, self._weights, {**self._swapped, **weights})
        tokens = self._checked(tokens)
        with torch.no_grad(), self._networks(runner._swapped) as network:
            kept, x = _embedded(network, tokens)
            known: dict[str, Tensor] = {}
            for number, layer in enumerate(network.layers, start=1):
                reads = network.reads(number, x, tokens, "qkv")
                computed, facts = _layer(layer, number, x, reads, network.graph.parallel, patterns)
                kept |= {f"blocks.{number - 1}.{hook}": value for hook, value in computed.items()}
                known |= facts
                x = computed["hook_resid_post"]
            W_O = [layer.W_O for layer in network.layers]
            return Recording(runner, tokens, kept, network.unembed(x), W_O, network, known)

    def patterns(self, tokens: Int[Tensor, "batch pos"]) -> list[Float[Tensor, "batch head query key"]]:
        """The attention of every layer. What follows the last layer's keys is not computed."""
        tokens, found = self._checked(tokens), []
        with torch.no_grad(), self._networks(self._swapped) as network:
            _, x = _embedded(network, tokens)
            for number, layer in enumerate(network.layers[:-1], start=1):
                reads = network.reads(number, x, tokens, "qkv")
                computed, facts = _layer(layer, number, x, reads, network.graph.parallel, True)
                found.append(facts[f"pattern {number}"])
                x = computed["hook_resid_post"]
            last = network.layers[-1]
            q, k = (last.rotated(one[None])[0] for one in network.reads(len(network.layers), x, tokens, "qk"))
            return [*found, attention.pattern(q, k, last.scale)]

    def _checked(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
        require_length(tokens, self.n_ctx)
        return tokens.to(self.weights["embed.W_E"].device)

    def run(
        self, recording: Recording, variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> Iterator[tuple[list[int], Float[Tensor, "variant batch m vocab"]]]:
        """A group holds variants that first differ at the same place, as many as fit the CPU caches.

        If a batch is so long that not even one variant fits, it is run in parts of some sequences each.
        """
        depth: dict[int, list[int]] = defaultdict(list)
        for index, variant in enumerate(variants):
            depth[min((_depth(self.graph, patch) for patch in variant), default=0)].append(index)
        if recording.tokens.numel() * recording.tokens.shape[1] * self.graph.n_heads <= MOST_PATTERN:
            for layer in _value_layers(self.graph, variants):
                recording.pattern(layer)
        at_once, parted = max(1, TOKENS_AT_ONCE // recording.tokens.numel()), parts(recording, queries, TOKENS_AT_ONCE)
        for _, deep in sorted(depth.items()):
            for start, indices in _by_start(self.graph, variants, deep):
                with self.network(recording) as network:
                    for part in parted:
                        part.begin(network, start, [variants[i] for i in indices])
                for first in range(0, len(indices), at_once):
                    chosen = indices[first : first + at_once]
                    with self.network(recording) as network:
                        logits = [part.logits(network, [variants[i] for i in chosen]) for part in parted]
                    yield chosen, logits[0] if len(logits) == 1 else torch.cat(logits, dim=1)

    @contextmanager
    def network(self, recording: Recording) -> Iterator[Network]:
        """`with runner.network(recording) as network:` the network that computed the recorded run."""
        assert recording.network is not None
        if not self._swapped:
            yield recording.network
            return
        with self._networks(self._swapped) as network:
            yield network

    def pattern(self, recording: Recording, layer: int) -> Float[Tensor, "batch head query key"]:
        with torch.no_grad(), self.network(recording) as network:
            q, k = (network[layer].rotated(recording.layer(layer, f"attn.hook_{one}")[None])[0] for one in "qk")
            return attention.pattern(q, k, network[layer].scale)


def _embedded(
    network: Network, tokens: Int[Tensor, "batch pos"]
) -> tuple[dict[str, Tensor], Float[Tensor, "batch pos d"]]:
    """The embeddings by hook, and their sum."""
    x = network.embed(tokens)
    if network.positions is None:
        return {"hook_embed": x}, x
    positions = network.positions(tokens).expand_as(x)
    return {"hook_embed": x, "hook_pos_embed": positions}, x + positions


def _value_layers(graph: Graph, variants: Sequence[Variant]) -> list[int]:
    """The layers in which several variants patch only values, so that the intact attention is worth keeping.

    Variants whose values are the same at every position do not count: they need no attention.
    """
    alone = [{patch.site.partition(ARROW)[2] or patch.site for patch in variant} for variant in variants]
    same = [all(patch.is_constant and ARROW not in patch.site for patch in variant) for variant in variants]
    read = [next(iter(sites)) for sites, same in zip(alone, same, strict=True) if len(sites) == 1 and not same]
    counts = Counter(layer_of(site.partition(".")[0]) for site in read if site.endswith(".v"))
    return [layer for layer, count in counts.items() if count >= WORTH_A_PATTERN]


def _by_start(
    graph: Graph, variants: Sequence[Variant], indices: Sequence[int]
) -> Iterator[tuple[list[Patch], list[int]]]:
    """Groups of variants that share their patches before the last layer, each with these patches, then all others."""
    starts: dict[tuple, list[int]] = defaultdict(list)
    for index in indices:
        early = [patch for patch in variants[index] if _is_early(graph, patch)]
        starts[tuple(sorted((p.site, id(p.value), id(p.where), id(p.amount)) for p in early))].append(index)
    alone = [index for key, members in starts.items() if not key or len(members) == 1 for index in members]
    for key, members in starts.items():
        if key and len(members) > 1:
            yield [patch for patch in variants[members[0]] if _is_early(graph, patch)], members
    if alone:
        yield [], sorted(alone)


def _is_early(graph: Graph, patch: Patch) -> bool:
    """Whether a patch changes something before the last layer's heads read it."""
    source, arrow, target = patch.site.partition(ARROW)
    reads = target if arrow else source
    return reads != "out" and layer_of(reads.partition(".")[0]) < graph.n_layers


def _layer(
    layer: Layer,
    number: int,
    x: Float[Tensor, "batch pos d"],
    reads: tuple[Float[Tensor, "batch pos head d_head"], ...],
    parallel: bool,
    patterns: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One layer of the intact run: its activations by hook, and other values that the recording need not compute."""
    q, k, v = reads
    kept = {"hook_resid_pre": x, "attn.hook_q": q, "attn.hook_k": k, "attn.hook_v": v}
    known: dict[str, Tensor] = {}
    q, k = layer.rotated(q[None]), layer.rotated(k[None])
    if patterns:
        known[f"pattern {number}"], z = attention.pattern_and_output(q[0], k[0], v, layer.scale)
    else:
        z = attention.attend(q, k, v[None], layer.scale)[0]
    out = layer.combine(z)
    if layer.writes_one_head:
        known[head_name(number, 1)] = out
    kept |= {"attn.hook_z": z, "hook_attn_out": out}
    after = x + out
    if layer.feed_forward is not None:
        kept["hook_mlp_out"] = layer.feed_forward(x if parallel else after)
        after = after + kept["hook_mlp_out"]
    return kept | {"hook_resid_post": after}, known


def _depth(graph: Graph, patch: Patch) -> int:
    """Where in the computation a patch first matters; sites that read or write at one place share a number."""
    if ARROW in patch.site:
        name = patch.site.split(ARROW)[1]
    elif "." in patch.site:
        name = patch.site
    else:  # a writer matters from the first input that reads it
        name = next(name for name in graph.inputs if patch.site in graph.writers_before(name))
    if name == "out":
        return 3 * graph.n_layers
    layer = int(name[2:]) if name.startswith("FF") else head_of(name)[0]
    return 3 * layer - 2 if name.startswith("FF") else 3 * layer - 3
