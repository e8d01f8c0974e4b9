"""One forward of a group of variants: what each patch changes, and nothing else, is computed.

As long as the stream of every variant is the recorded one, a layer costs only the heads that are patched,

    out' = out + sum over those heads of (z' - z) W_O[head].

Once it has changed, all heads are computed from it, at the rows that have changed where these are few. In the last
layer only the queries' rows are left. Attention is left out where nobody reads a head, or where its queries, keys or
values are the same at every position. `fast` chooses which variants go together.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.runner.attention import attend, take, weigh, without_attention
from induction_memory.runner.group import Group


def logits(group: Group) -> Float[Tensor, "variant batch m vocab"]:
    """The logits of every variant of a group."""
    graph = group.recording.graph
    if not group.begun:
        before_last_layer(group)
    last, before = graph.n_layers, group.x
    _attention(group, last)
    if group.x is not None and _is_linear(group):
        assert group.network.tail is not None
        return group.network.tail(group.x)
    if last in graph.feed_forwards:
        _feed_forward(group, last, before)
    changes = group.changes("out")
    if group.x is None and not changes:
        return group.intact(group.recording.logits)
    stream = group.intact(group.recording.layer(graph.n_layers, "hook_resid_post")) if group.x is None else group.x
    if changes:
        stream = torch.stack([stream[i] + changes.get(i, 0.0) for i in range(len(group.variants))])
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


def _is_linear(group: Group) -> bool:
    """Whether everything after the last layer's heads is one linear map, and nothing there is patched."""
    last = f"FF{group.recording.graph.n_layers}"
    return group.network.tail is not None and not (group.nodes[last] or group.edges[last] or group.edges["out"])


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
    z = _some_heads(group, layer, sorted(reads))
    if not reads and not any(group.nodes[head] for head in heads):
        return
    W_O = group.network[layer].W_O
    x = list(_after_heads(group, layer))
    for h, head in enumerate(heads):
        patched = {i for i, _ in group.nodes[head]} | {i for i, one in reads if one == h}
        if not patched:
            continue
        if head not in group.sources and not group.nodes[head]:
            recorded = group.pick(recording.layer(layer, "attn.hook_z")[..., h, :])
            for i in sorted(patched):
                change = (z[i, h] - recorded).flatten(0, 1)
                x[i] = torch.addmm(x[i].flatten(0, 1), change, W_O[h]).view_as(x[i])
            continue
        before = group.intact(recording.at(head))
        own = before.clone()
        for i in sorted(patched):
            if (i, h) in reads:
                own[i] = z[i, h] @ W_O[h]
        group.written[head] = group.replaced(head, own)
        for i in sorted(patched):
            x[i] = x[i] + (group.written[head][i] - before[i])
    group.rows = None if reads else group.patched_rows(heads)
    group.x = torch.stack(x) if len(x) > 1 else x[0].unsqueeze(0)


def _some_heads(group: Group, layer: int, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
    """z of single heads, (variant, head) -> [batch, m, d_head], from the recorded stream."""
    weights = group.network[layer]
    same = {(i, h): _same_everywhere(group, layer, [(i, h)]) for i, h in pairs}
    reads = {
        pair: [_head_reads(group, layer, letter, *pair) for letter in ("v" if same[pair] in ("v", "k") else "qkv")]
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
        q, k, v = (torch.stack(one).unsqueeze(-2) for one in zip(*(reads[pair] for pair in left), strict=True))
        q, k = group.pick_heads(weights.rotated(q)), weights.rotated(k)
        attended = attend(q, k, v, weights.scale, group.queries if group.late else None).squeeze(-2)
        z.update(zip(left, attended, strict=True))
    return z


def _keeps_pattern(group: Group, layer: int, variant: int, h: int) -> bool:
    """Whether a variant patches a head's values alone, and the attention of the intact run is at hand."""
    sites = (f"L{layer}H{h + 1}.{letter}" for letter in "qk")
    return group.recording.knows_pattern(layer) and not any(variant in group.patched(site) for site in sites)


def _all_heads(group: Group, layer: int, heads: Sequence[str]) -> None:
    """Attention over a stream that has changed."""
    every = [(i, h) for h in range(len(heads)) for i in range(len(group.variants))]
    z = None if all(group.unread(heads[h], i) for i, h in every) else _all_attended(group, layer, every)
    weights = group.network[layer]
    if z is None:  # whatever is added here, the edges that read it take away
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


def _all_attended(
    group: Group, layer: int, every: Sequence[tuple[int, int]]
) -> Float[Tensor, "variant batch m head d_head"]:
    """z of all heads, over a stream that has changed."""
    weights = group.network[layer]
    same = _same_everywhere(group, layer, every) if group.rows is None else ""
    if same:
        read = _projections(group, layer, "v" if same in ("v", "k") else "qkv")
        z = without_attention(same, [one.transpose(2, 3) for one in read], weights.scale)
        if z is not None:
            group.narrow(layer)
            return group.pick_heads(z.transpose(2, 3))
    last = layer == group.recording.graph.n_layers and group.queries is not None
    if not last or weights.rotary is not None or group.rows is not None:
        q, k, v = _projections(group, layer, "qkv")
        group.narrow(layer)
        q = group.pick_heads(weights.rotated(q))
    else:
        k, v = _projections(group, layer, "kv")
        group.narrow(layer)
        (q,) = _projections(group, layer, "q")
    return attend(q, weights.rotated(k), v, weights.scale, group.queries if group.late else None)


def _same_everywhere(group: Group, layer: int, pairs: Sequence[tuple[int, int]]) -> str:
    """Which of v, k and q is one vector at every position, for all these variants and heads; the first of them."""
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
    """The queries, keys or values of that head."""
    assert group.x is not None
    weights, changes = group.network[layer], group.changes(f"L{layer}H1.{letter}")
    streams = group.x + torch.stack([changes[i] for i in range(len(group.variants))])
    return weights.project(weights.norm(streams), letter)[0]


def _with_reads(group: Group, layer: int, letter: str, result: Tensor) -> Float[Tensor, "variant batch m head d_head"]:
    """The same with the patches of these inputs applied."""
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
