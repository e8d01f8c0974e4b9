"""One forward of a group of variants: what each patch changes, and nothing else, is computed.

As long as the stream of every variant is the recorded one, a layer costs only the heads that are patched,

    out' = out + sum over those heads of (z' - z) W_O[head].

Once it has changed, all heads are computed from it, only at the changed rows if these are few. In the last layer only
the queries' rows are computed. Attention is skipped if every reader of the head has its output replaced, or if the
head's queries, keys or values are the same at every position. `fast` chooses which variants go together.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.runner.attended import all_heads, some_heads
from induction_memory.runner.attention import stacked, take
from induction_memory.runner.group import Group
from induction_memory.runner.tail import Through


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
