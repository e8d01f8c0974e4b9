"""A part of a recorded run: so few sequences that they fit the CPU caches. Each part runs shared patches once.

A group of variants on their way through the layers: where each is patched, and how far its stream has changed.

The stream x of all variants is kept on a new first axis. As long as every variant has the recorded stream, x is None
and nothing is held. `rows` are the only positions at which x can differ from the recording, where these are few. Once
the last layer has its queries, only the rows of the requested positions are kept (`late`).

What the heads of a group of variants write: their patched queries, keys and values, and the attention over them.

    z = A(q, k) v,    written = z M = A(q, k) (v M)

M is the map that reads a head's output: W_O, or in the last layer W_O and all that follows, if that is linear. If v M
is no wider than v, the values are multiplied by M before the attention, and those of the recorded run only once for all
variants. Without M the functions here return z itself.

One forward of a group of variants: what each patch changes, and nothing else, is computed.

As long as the stream of every variant is the recorded one, a layer costs only the heads that are patched,

    out' = out + sum over those heads of (z' - z) W_O[head].

Once it has changed, all heads are computed from it, only at the changed rows if these are few. In the last layer only
the queries' rows are computed. Attention is skipped if every reader of the head has its output replaced, or if the
head's queries, keys or values are the same at every position. `fast` chooses which variants go together.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.runner.components import ARROW
from induction_memory.runner.network import Network, Through, attend, stacked, take, weigh, without_attention
from induction_memory.runner.recording import Patch, Recording, Variant


class Group:
    """The patches of a group of variants by site, and the state of their stream."""

    def __init__(
        self,
        network: Network,
        recording: Recording,
        variants: Sequence[Variant],
        queries: Int[Tensor, "batch m"] | None,
    ) -> None:
        self.network, self.recording, self.variants, self.queries = network, recording, variants, queries
        self.x: Tensor | None = None
        self.rows: Tensor | None = None  # None: x can differ at any position
        self.late = False
        self.begun = False  # whether the layers before the last are done
        self.nodes: dict[str, list[tuple[int, Patch]]] = defaultdict(list)
        self.edges: dict[str, list[tuple[int, str, Patch]]] = defaultdict(list)
        for index, variant in enumerate(variants):
            for patch in variant:
                source, arrow, target = patch.site.partition(ARROW)
                if arrow:
                    self.edges[target].append((index, source, patch))
                else:
                    self.nodes[source].append((index, patch))
        self.sources = {source for patches in self.edges.values() for _, source, _ in patches}
        self.written: dict[str, Tensor] = {}  # what the sources of edges wrote, where it is not as recorded

    def go_on_from(self, begun: "Group") -> None:
        """Continue from the stream of a single run with the patches that all variants share."""
        copies = len(self.variants)
        self.x, self.rows = (
            one if one is None else one.expand(copies, *one.shape[1:]) for one in (begun.x, begun.rows)
        )
        self.written = {name: value.expand(copies, *value.shape[1:]) for name, value in begun.written.items()}
        self.begun = True

    def replaced(self, name: str, own: Tensor) -> Tensor:
        """A writer's output with its patches applied."""
        if not self.nodes[name]:
            return own
        new = own.clone()
        for i, patch in self.nodes[name]:
            new[i] = self.blend(new[i].clone(), patch)
        return new

    def changes(self, name: str) -> dict[int, Tensor]:
        """Variant -> what its patched edges add to an input."""
        changes: dict[int, Tensor] = {}
        for i, source, patch in self.edges[name]:
            own = self.written[source][i] if source in self.written else self.pick(self.recording.at(source))
            change = self.blend(own, patch) - own
            changes[i] = changes[i] + change if i in changes else change
        return changes

    def blend(self, own: Tensor, patch: Patch) -> Tensor:
        """An activation with a patch applied."""
        value = self.pick(patch.value.expand(*self.recording.tokens.shape, -1))
        return patch.blend(own, value, None if patch.where is None else self.pick(patch.where.unsqueeze(-1)))

    def patched(self, site: str) -> set[int]:
        """The variants that patch what a head reads at a site."""
        return {i for i, _ in self.nodes[site]} | {i for i, _, _ in self.edges[site]}

    def constant(self, site: str, variant: int) -> bool:
        """Whether a variant puts one vector at every position of an input: at its site, or at all edges into it."""
        patches = [patch for i, patch in self.nodes[site] if i == variant]
        if patches:
            return patches[-1].is_constant
        edges = [(source, patch) for i, source, patch in self.edges[site] if i == variant]
        if not edges:
            return False
        constant = {source for source, patch in edges if patch.is_constant}
        return len(constant) == len(edges) and constant.issuperset(self.recording.graph.writers_before(site))

    def unread(self, head: str, variant: int) -> bool:
        """Whether a variant replaces the head's output on the edge to every reader."""
        if not self.edges["out"]:  # the unembedding reads every head
            return False
        graph = self.recording.graph
        readers = [name for name in graph.inputs if head in graph.writers_before(name)]
        return all(
            any(i == variant and source == head and patch.is_everywhere for i, source, patch in self.edges[name])
            for name in readers
        )

    def intact(self, recorded: Tensor) -> Tensor:
        """A recorded activation, the same for every variant."""
        return self.pick(recorded).expand(len(self.variants), *(-1,) * recorded.dim())

    def pick(self, x: Tensor) -> Tensor:
        """The rows of the queries of [(variant) batch pos d], once only those are kept; all rows before."""
        return take(x, self.queries) if self.late and self.queries is not None else x

    def pick_heads(self, x: Tensor) -> Tensor:
        """The same for [variant, batch, pos, head, d_head]."""
        return self.pick(x.flatten(-2)).unflatten(-1, x.shape[-2:])

    def narrow(self, layer: int) -> None:
        """From the last layer's queries on, keep only the rows of the requested positions."""
        if layer != self.recording.graph.n_layers or self.queries is None:
            return
        self.x = self.x if self.x is None else take(self.x, self.queries)
        self.written = {name: take(value, self.queries) for name, value in self.written.items()}
        self.rows, self.late = None, True

    def patched_rows(self, names: Sequence[str]) -> Tensor | None:
        """[variant, batch, rows]: the positions that the patches of these writers change; None if these are many."""
        patches = [(i, patch) for name in names for i, patch in self.nodes[name]]
        if self.late or any(patch.where is None for _, patch in patches):
            return None
        tokens = self.recording.tokens
        mask = torch.zeros(len(self.variants), *tokens.shape, dtype=torch.bool, device=tokens.device)
        for i, patch in patches:
            assert patch.where is not None
            mask[i] |= patch.where
        count = int(mask.sum(-1).max())
        if count > tokens.shape[1] // 4:
            return None
        return mask.int().topk(max(count, 1), dim=-1).indices  # where fewer change, some others are computed again


def some_heads(
    group: Group, layer: int, pairs: Sequence[tuple[int, int]], through: Through | None
) -> dict[tuple[int, int], Float[Tensor, "batch m d_out"]]:
    """What single heads write, by (variant, head), from the recorded stream."""
    weights = group.network[layer]
    same = {(i, h): _same_everywhere(group, layer, [(i, h)]) for i, h in pairs}
    reads = {
        pair: [
            *(_head_reads(group, layer, letter, *pair) for letter in ("" if same[pair] in ("v", "k") else "qk")),
            _head_values(group, layer, *pair, through),
        ]
        for pair in pairs
    }
    group.narrow(layer)
    z: dict[tuple[int, int], Tensor] = {}
    for pair, read in reads.items():
        z_pair = without_attention(same[pair], read, weights.scale)
        if z_pair is not None:
            z[pair] = group.pick(z_pair)
        elif _keeps_pattern(group, layer, *pair):
            z[pair] = weigh(group.pick(group.recording.pattern(layer)[:, pair[1]]), read[-1])
    left = [pair for pair in pairs if pair not in z]
    if left:
        q, k, v = (stacked(one).unsqueeze(-2) for one in zip(*(reads[pair] for pair in left), strict=True))
        q, k = group.pick_heads(weights.rotated(q)), weights.rotated(k)
        attended = attend(q, k, v, weights.scale, group.queries if group.late else None).squeeze(-2)
        z.update(zip(left, attended, strict=True))
    return z


def all_heads(
    group: Group, layer: int, every: Sequence[tuple[int, int]], through: Through | None
) -> Float[Tensor, "variant batch m head d_out"]:
    """What all heads write, over a stream that has changed."""
    weights = group.network[layer]
    same = _same_everywhere(group, layer, every) if group.rows is None else ""
    if same:
        read = [*_projections(group, layer, "" if same in ("v", "k") else "qk"), _values(group, layer, through)]
        z = without_attention(same, [one.transpose(2, 3) for one in read], weights.scale)
        if z is not None:
            group.narrow(layer)
            return group.pick_heads(z.transpose(2, 3))
    last = layer == group.recording.graph.n_layers and group.queries is not None
    if not last or weights.rotary is not None or group.rows is not None:
        if through is None:
            q, k, v = _projections(group, layer, "qkv")
        else:
            (q, k), v = _projections(group, layer, "qk"), _values(group, layer, through)
        group.narrow(layer)
        q = group.pick_heads(weights.rotated(q))
    else:
        k, v = _projections(group, layer, "k")[0], _values(group, layer, through)
        group.narrow(layer)
        (q,) = _projections(group, layer, "q")
    return attend(q, weights.rotated(k), v, weights.scale, group.queries if group.late else None)


def _keeps_pattern(group: Group, layer: int, variant: int, h: int) -> bool:
    """Whether a variant patches only the values of a head, and the attention of the intact run has been computed."""
    sites = (f"L{layer}H{h + 1}.{letter}" for letter in "qk")
    return group.recording.knows_pattern(layer) and not any(variant in group.patched(site) for site in sites)


def _same_everywhere(group: Group, layer: int, pairs: Sequence[tuple[int, int]]) -> str:
    """The first of v, k and q that is the same vector at every position, for all these variants and heads."""
    for letter in "v" if group.network[layer].rotary is not None else "vkq":
        if all(group.constant(f"L{layer}H{h + 1}.{letter}", i) for i, h in pairs):
            return letter
    return ""


def _head_reads(group: Group, layer: int, letter: str, variant: int, h: int) -> Float[Tensor, "batch pos d_head"]:
    """Queries, keys or values of one head of one variant, from the recorded stream."""
    weights, site = group.network[layer], f"L{layer}H{h + 1}.{letter}"
    result = group.recording.layer(layer, f"attn.hook_{letter}")[..., h, :]
    if variant in (changes := group.changes(site)):
        stream = group.recording.layer(layer, "hook_resid_pre") + changes[variant]
        result = weights.project_head(weights.norm(stream), letter, h)
    for i, patch in group.nodes[site]:
        result = group.blend(result, patch) if i == variant else result
    return result


def _head_values(
    group: Group, layer: int, variant: int, h: int, through: Through | None
) -> Float[Tensor, "batch pos d_out"]:
    if through is None:
        return _head_reads(group, layer, "v", variant, h)
    if variant in group.patched(f"L{layer}H{h + 1}.v"):
        return _head_reads(group, layer, "v", variant, h) @ through.M[h]
    own = group.recording.layer(layer, "attn.hook_v")[..., h, :]
    return group.recording.once(f"values {layer} {h} {through.name}", lambda: own @ through.M[h])


def _values(group: Group, layer: int, through: Through | None) -> Float[Tensor, "variant batch pos head d_out"]:
    """The values of a layer's heads, from a stream that has changed."""
    if through is None:
        return _projections(group, layer, "v")[0]
    heads = group.recording.graph.heads_of(layer)
    if group.rows is not None or any(group.patched(f"{head}.v") for head in heads):
        return torch.einsum("...he,hed->...hd", _projections(group, layer, "v")[0], through.M)
    assert group.x is not None
    return through.values(group.network[layer].norm(group.x))


def _projections(group: Group, layer: int, letters: str) -> list[Float[Tensor, "variant batch m head d_head"]]:
    """Queries, keys and values (as the letters say) of a layer's heads, from a stream that has changed."""
    assert group.x is not None
    weights = group.network[layer]
    if group.rows is None:
        plain = "".join(letter for letter in letters if not _all_changed(group, layer, letter))
        fresh = dict(zip(plain, weights.project(weights.norm(group.x), plain), strict=True)) if plain else {}
        return [
            _with_reads(group, layer, letter, fresh[letter]) if letter in fresh else _changed(group, layer, letter)
            for letter in letters
        ]
    index, results = group.rows[..., None, None], []
    fresh_rows = weights.project(weights.norm(take(group.x, group.rows)), letters)
    for letter, fresh in zip(letters, fresh_rows, strict=True):
        recorded = group.intact(group.recording.layer(layer, f"attn.hook_{letter}"))
        results.append(recorded.scatter(2, index.expand_as(fresh), fresh))
    return [_with_reads(group, layer, letter, result) for letter, result in zip(letters, results, strict=True)]


def _all_changed(group: Group, layer: int, letter: str) -> bool:
    """Whether every variant has patched edges into the one head of a layer, and no other patch there."""
    site = f"L{layer}H1.{letter}"
    everywhere = len({i for i, _, _ in group.edges[site]}) == len(group.variants)
    return everywhere and group.recording.graph.n_heads == 1 and not group.nodes[site]


def _changed(group: Group, layer: int, letter: str) -> Float[Tensor, "variant batch m head d_head"]:
    """The queries, keys or values of the one head of a layer, in the case of `_all_changed`."""
    assert group.x is not None
    weights, changes = group.network[layer], group.changes(f"L{layer}H1.{letter}")
    streams = group.x + stacked([changes[i] for i in range(len(group.variants))])
    return weights.project(weights.norm(streams), letter)[0]


def _with_reads(group: Group, layer: int, letter: str, result: Tensor) -> Float[Tensor, "variant batch m head d_head"]:
    """`result` with the patches of these inputs applied."""
    assert group.x is not None
    weights = group.network[layer]
    sites = [f"{head}.{letter}" for head in group.recording.graph.heads_of(layer)]
    if not any(group.patched(site) for site in sites):
        return result
    result = result.clone()
    for h, site in enumerate(sites):
        for i, change in group.changes(site).items():
            result[i, :, :, h] = weights.project_head(weights.norm(group.x[i] + change), letter, h)
        for i, patch in group.nodes[site]:
            result[i, :, :, h] = group.blend(result[i, :, :, h].clone(), patch)
    return result


def logits(group: Group) -> Float[Tensor, "variant batch m vocab"]:
    """The logits of every variant of a group."""
    graph = group.recording.graph
    if not group.begun:
        before_last_layer(group)
    last, before = graph.n_layers, group.x
    if _ends_with_heads(group) and (through := group.network.to_logits) is not None:
        return _from_heads(group, through)
    _attention(group, last)
    if group.x is not None and _ends_with_tail(group):
        assert group.network.tail is not None
        return group.network.tail(group.x)
    if last in graph.feed_forwards:
        _feed_forward(group, last, before)
    changes = group.changes("out")
    if group.x is None and not changes:
        return group.intact(group.recording.logits)
    stream = group.intact(group.recording.layer(graph.n_layers, "hook_resid_post")) if group.x is None else group.x
    if changes:
        stream = stacked([stream[i] + changes.get(i, 0.0) for i in range(len(group.variants))])
    return group.network.unembed(stream)


def before_last_layer(group: Group) -> None:
    """The stream of every variant of a group, as the last layer reads it."""
    graph = group.recording.graph
    for name in ("embed", "pos")[: 1 + graph.positions]:
        _embedding(group, name)
    for layer in range(1, graph.n_layers):
        before = group.x
        _attention(group, layer)
        if layer in graph.feed_forwards:
            _feed_forward(group, layer, before)
    group.begun = True


def _ends_with_tail(group: Group) -> bool:
    """Whether the network has a tail and no variant patches it; a tail with a hidden layer needs all rows."""
    last, tail = f"FF{group.recording.graph.n_layers}", group.network.tail
    if tail is None or (tail.hidden is not None and group.rows is not None):
        return False
    return not (group.nodes[last] or group.edges[last] or group.edges["out"])


def _ends_with_heads(group: Group) -> bool:
    """Whether the last layer's heads are patched only in what they read, and nothing after them is patched."""
    heads = group.recording.graph.heads_of(group.recording.graph.n_layers)
    return _ends_with_tail(group) and group.rows is None and not any(group.nodes[head] for head in heads)


def _from_heads(group: Group, through: Through) -> Float[Tensor, "variant batch m vocab"]:
    """The logits, to which each of the last layer's heads adds A (v M). Terms that do not change are recorded ones."""
    recording, last = group.recording, group.recording.graph.n_layers
    heads, tail = recording.graph.heads_of(last), group.network.tail
    assert tail is not None
    if group.x is not None:
        every = [(i, h) for h in range(len(heads)) for i in range(len(group.variants))]
        written = all_heads(group, last, every, through)
        added = written.squeeze(-2) if len(heads) == 1 else written.sum(-2)
        return tail(group.x).add_(added).add_(group.network[last].attention["b_O"] @ tail.W)
    reads = sorted({(i, h) for h, head in enumerate(heads) for s in "qkv" for i in group.patched(f"{head}.{s}")})
    written = some_heads(group, last, reads, through)
    result = list(group.intact(recording.logits))
    for (i, h), new in written.items():
        z = recording.layer(last, "attn.hook_z")[..., h, :]
        own = recording.once(f"written {last} {h} {through.name}", lambda z=z, h=h: z @ through.M[h])
        result[i] = result[i] + (new - group.pick(own))
    return stacked(result)


def _embedding(group: Group, name: str) -> None:
    if not group.nodes[name]:
        return
    own = group.intact(group.recording.at(name))
    new = group.replaced(name, own)
    group.rows = group.patched_rows([name]) if group.x is None else None
    before = group.intact(group.recording.layer(1, "hook_resid_pre")) if group.x is None else group.x
    group.x = before + (new - own)
    group.written[name] = new


def _attention(group: Group, layer: int) -> None:
    recording, heads = group.recording, group.recording.graph.heads_of(layer)
    if group.x is not None:
        _all_heads(group, layer, heads)
        return
    reads = {(i, h) for h, head in enumerate(heads) for s in "qkv" for i in group.patched(f"{head}.{s}")}
    reads = {(i, h) for i, h in reads if not group.unread(heads[h], i)}
    through = group.network.to_stream(layer)
    z = some_heads(group, layer, sorted(reads), through)
    if not reads and not any(group.nodes[head] for head in heads):
        return
    W_O = group.network[layer].W_O
    x = list(_after_heads(group, layer))
    for h, head in enumerate(heads):
        patched = {i for i, _ in group.nodes[head]} | {i for i, one in reads if one == h}
        if not patched:
            continue
        if head not in group.sources and not group.nodes[head] and through is None:
            recorded = group.pick(recording.layer(layer, "attn.hook_z")[..., h, :])
            for i in sorted(patched):
                change = (z[i, h] - recorded).flatten(0, 1)
                x[i] = torch.addmm(x[i].flatten(0, 1), change, W_O[h]).view_as(x[i])
            continue
        recorded = group.pick(recording.at(head))
        written = {i: z[i, h] @ W_O[h] if through is None else z[i, h] for i in patched if (i, h) in reads}
        for i, patch in group.nodes[head]:
            written[i] = group.blend(written.get(i, recorded), patch)
        for i, own in written.items():
            x[i] = x[i] + (own - recorded)
        if head in group.sources:
            group.written[head] = stacked([written.get(i, recorded) for i in range(len(x))])
    group.rows = None if reads else group.patched_rows(heads)
    group.x = stacked(x)


def _all_heads(group: Group, layer: int, heads: Sequence[str]) -> None:
    """Attention over a stream that has changed."""
    every = [(i, h) for h in range(len(heads)) for i in range(len(group.variants))]
    z = None if all(group.unread(heads[h], i) for i, h in every) else all_heads(group, layer, every, None)
    weights = group.network[layer]
    if z is None:  # patched edges replace every head's output at all its readers, so attention need not be computed
        group.narrow(layer)
    assert group.x is not None
    out = weights.attention["b_O"].expand_as(group.x) if z is None else weights.combine(z)
    for h, head in enumerate(heads):
        if not group.nodes[head] and head not in group.sources:
            continue
        own = torch.zeros_like(group.x) if z is None else z[..., h, :] @ weights.W_O[h]
        new = group.replaced(head, own)
        if new is not own:
            out = out + (new - own)
        group.written[head] = new
    group.rows, group.x = None, group.x + out


def _feed_forward(group: Group, layer: int, before: Tensor | None) -> None:
    recording, name, map_ = group.recording, f"FF{layer}", group.network[layer].feed_forward
    assert map_ is not None
    changes, nodes = group.changes(name), group.nodes[name]
    if recording.graph.parallel:
        stream = before if before is None else group.pick(before)
    else:
        stream = group.x
    rows = None
    if stream is not None and group.rows is None:
        out = map_(stream)
    else:
        out = group.intact(recording.layer(layer, "hook_mlp_out"))
        if stream is not None and group.rows is not None:
            fresh, rows = map_(take(stream, group.rows)), group.rows
            out = out.scatter(2, group.rows[..., None].expand_as(fresh), fresh)
    if changes:
        own = _read(group, layer) if stream is None else stream
        out, rows = out.clone(), None
        for i, change in changes.items():
            out[i] = map_(own[i] + change)
    if nodes:
        out, rows = group.replaced(name, out), None
        if group.x is None and not changes:
            rows = group.patched_rows([name])
    if group.x is None and not changes and not nodes:
        return
    if stream is None and not changes and not nodes:
        rows = group.rows  # parallel: the heads alone have changed
    if name in group.sources:
        group.written[name] = out
    group.x = (_after_heads(group, layer) if group.x is None else group.x) + out
    group.rows = rows


def _read(group: Group, layer: int) -> Tensor:
    """What an intact feed-forward reads."""
    pre = group.intact(group.recording.layer(layer, "hook_resid_pre"))
    return pre if group.recording.graph.parallel else _after_heads(group, layer)


def _after_heads(group: Group, layer: int) -> Tensor:
    return group.intact(group.recording.after_heads(layer))


@dataclass(eq=False)
class Part:
    """The run of some sequences, and the requested positions in them."""

    recording: Recording
    queries: Int[Tensor, "batch m"] | None
    sequences: slice
    begun: Group | None = None
    """One run, up to the last layer, with the patches that several variants share."""

    def begin(self, network: Network, start: Sequence[Patch], variants: Sequence[Variant]) -> None:
        """Run `start`, the patches before the last layer that the variants share; nothing if it is empty."""
        self.begun = None
        if not start:
            return
        group = Group(network, self.recording, [self._of(start)], self.queries)
        group.sources |= {
            patch.site.split(ARROW)[0] for variant in variants for patch in variant if ARROW in patch.site
        }
        before_last_layer(group)
        self.begun = group

    def logits(self, network: Network, variants: Sequence[Variant]) -> Float[Tensor, "variant batch m vocab"]:
        """The logits of some of these variants."""
        group = Group(network, self.recording, [self._of(variant) for variant in variants], self.queries)
        if self.begun is not None:
            group.go_on_from(self.begun)
        return logits(group)

    def _of(self, variant: Variant) -> Variant:
        """The variant as these sequences see it."""
        return variant if self.sequences == slice(None) else [patch.of(self.sequences) for patch in variant]


def parts(recording: Recording, queries: Int[Tensor, "batch m"] | None, tokens_at_once: int) -> list[Part]:
    """The run in parts of at most `tokens_at_once` tokens, but at least one sequence."""
    batch, length = recording.tokens.shape
    size = max(1, tokens_at_once // length)
    if size >= batch:
        return [Part(recording, queries, slice(None))]
    return [
        Part(recording.of(some), queries if queries is None else queries[some], some)
        for some in (slice(first, first + size) for first in range(0, batch, size))
    ]
