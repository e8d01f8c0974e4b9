"""What the heads of a group of variants write: their patched queries, keys and values, and the attention over them.

    z = A(q, k) v,    written = z M = A(q, k) (v M)

M is the map that reads a head's output: W_O, or in the last layer W_O and all that follows, if that is linear. If v M
is no wider than v, the values are multiplied by M before the attention, and those of the recorded run only once for all
variants. Without M the functions here return z itself.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.runner.attention import attend, stacked, take, weigh, without_attention
from induction_memory.runner.group import Group
from induction_memory.runner.tail import Through


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
