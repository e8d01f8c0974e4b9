"""One forward of several variants of a run: what each patch changes, and nothing else, is computed.

As long as the stream of every variant is the recorded one, a layer costs only the heads that are patched,

    out' = out + sum over those heads of (z' - z) W_O[head];

once it has changed, all heads are computed from it, at the rows that have changed where these are few. In the last
layer only the queries' rows are left. `engine.run` chooses which variants go together.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.runner.components import ARROW
from induction_memory.runner.layers import (
    apply,
    attend,
    combine,
    is_rotary,
    project,
    rotated,
    running_mean,
    take,
    unembed,
)
from induction_memory.runner.patches import Patch, Variant
from induction_memory.runner.recording import Recording


class PatchedRun:
    """One forward of a group of variants. `x` is None as long as the stream of every variant is the intact one."""

    def __init__(
        self, recording: Recording, variants: Sequence[Variant], queries: Int[Tensor, "batch m"] | None
    ) -> None:
        self.recording, self.variants, self.queries = recording, variants, queries
        self.x: Tensor | None = None
        self.rows: Tensor | None = None  # the only positions at which x differs from the intact stream; None: any
        self.late = False  # whether only the queries' rows are left
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

    def logits(self) -> Float[Tensor, "variant batch m vocab"]:
        graph = self.recording.graph
        for name in ("embed", "pos")[: 1 + graph.positions]:
            self._embedding(name)
        for layer in range(1, graph.n_layers + 1):
            before = self.x
            self._attention(layer)
            if layer in graph.feed_forwards:
                self._feed_forward(layer, before)
        changes = self._changes("out")
        if self.x is None and not changes:
            return self._intact(self.recording.logits)
        stream = self._intact(self.recording.layer(graph.n_layers, "hook_resid_post")) if self.x is None else self.x
        if changes:
            stream = torch.stack([stream[i] + changes.get(i, 0.0) for i in range(len(self.variants))])
        return unembed(self.recording.model, stream)

    def _embedding(self, name: str) -> None:
        if not self.nodes[name]:
            return
        own = self._intact(self.recording.at(name))
        new = self._replaced(name, own)
        self.rows = self._patched_rows([name]) if self.x is None else None
        self.x = (self._intact(self.recording.layer(1, "hook_resid_pre")) if self.x is None else self.x) + (new - own)
        self.written[name] = new

    def _attention(self, layer: int) -> None:
        heads = self.recording.graph.heads_of(layer)
        if self.x is not None:
            self._all_heads(layer, heads)
            return
        reads = {(i, h) for h, head in enumerate(heads) for s in "qkv" for i in self._patched(f"{head}.{s}")}
        z = self._some_heads(layer, sorted(reads))
        if not reads and not any(self.nodes[head] for head in heads):
            return
        W_O = self.recording.model.blocks[layer - 1].attn.W_O
        out = self._intact(self.recording.layer(layer, "hook_attn_out")).clone()
        for h, head in enumerate(heads):
            patched = {i for i, _ in self.nodes[head]} | {i for i, one in reads if one == h}
            if not patched:
                continue
            recorded = self._pick(self.recording.layer(layer, "attn.hook_z")[..., h, :])
            if head not in self.sources and not self.nodes[head]:
                for i in sorted(patched):
                    out[i] += (z[i, h] - recorded) @ W_O[h]
                continue
            before = self._intact(self.recording.at(head))
            own = before.clone()
            for i in sorted(patched):
                if (i, h) in reads:
                    own[i] = z[i, h] @ W_O[h]
            self.written[head] = self._replaced(head, own)
            for i in sorted(patched):
                out[i] += self.written[head][i] - before[i]
        self.rows = None if reads else self._patched_rows(heads)
        self.x = self._intact(self.recording.layer(layer, "hook_resid_pre")) + out

    def _some_heads(self, layer: int, pairs: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Tensor]:
        """z of single heads, (variant, head) -> [batch, m, d_head], from the recorded stream.

        Values that are all the same make z the same whatever is attended to; keys that are make it their mean.
        """
        attention = self.recording.model.blocks[layer - 1].attn
        reads = {pair: [self._head_reads(layer, letter, *pair) for letter in "qkv"] for pair in pairs}
        final = {(site, i): patch for site, patches in self.nodes.items() for i, patch in patches}
        same = {place for place, patch in final.items() if patch.is_constant}
        self._narrow(layer)
        z: dict[tuple[int, int], Tensor] = {}
        for (i, h), (_, _, v) in reads.items():
            if (f"L{layer}H{h + 1}.v", i) in same:
                z[i, h] = self._pick(v)
            elif (f"L{layer}H{h + 1}.k", i) in same and not is_rotary(attention):
                z[i, h] = self._pick(running_mean(v))
        left = [pair for pair in pairs if pair not in z]
        if left:
            q, k, v = (torch.stack(one).unsqueeze(-2) for one in zip(*(reads[pair] for pair in left), strict=True))
            q, k = self._pick_heads(rotated(attention, q)), rotated(attention, k)
            attended = attend(attention, q, k, v, self.queries if self.late else None).squeeze(-2)
            z.update(zip(left, attended, strict=True))
        return z

    def _all_heads(self, layer: int, heads: Sequence[str]) -> None:
        """Attention over a stream that has changed."""
        attention = self.recording.model.blocks[layer - 1].attn
        last = layer == self.recording.graph.n_layers and self.queries is not None
        if not last or is_rotary(attention) or self.rows is not None:
            q, k, v = self._projections(layer, "qkv")
            self._narrow(layer)
            q = self._pick_heads(rotated(attention, q))
        else:
            k, v = self._projections(layer, "kv")
            self._narrow(layer)
            (q,) = self._projections(layer, "q")
        z = attend(attention, q, rotated(attention, k), v, self.queries if self.late else None)
        out = combine(attention, z)
        for h, head in enumerate(heads):
            if not self.nodes[head] and head not in self.sources:
                continue
            own = z[..., h, :] @ attention.W_O[h]
            new = self._replaced(head, own)
            if new is not own:
                out = out + (new - own)
            self.written[head] = new
        assert self.x is not None
        self.rows, self.x = None, self.x + out

    def _narrow(self, layer: int) -> None:
        """From the last layer's queries on, only the rows that are asked for are left."""
        if layer != self.recording.graph.n_layers or self.queries is None:
            return
        self.x = self.x if self.x is None else take(self.x, self.queries)
        self.written = {name: take(value, self.queries) for name, value in self.written.items()}
        self.rows, self.late = None, True

    def _head_reads(self, layer: int, letter: str, variant: int, h: int) -> Tensor:
        """Queries, keys or values [batch, pos, d_head] of one head of one variant, from the recorded stream."""
        block, site = self.recording.model.blocks[layer - 1], f"L{layer}H{h + 1}.{letter}"
        result = self.recording.layer(layer, f"attn.hook_{letter}")[..., h, :]
        if variant in (changes := self._changes(site)):
            W, b = _weights(block.attn, letter)
            stream = self.recording.layer(layer, "hook_resid_pre") + changes[variant]
            result = apply(block.ln1, stream) @ W[h] + b[h]
        for i, patch in self.nodes[site]:
            result = self._blend(result, patch) if i == variant else result
        return result

    def _projections(self, layer: int, letters: str) -> list[Float[Tensor, "variant batch m head d_head"]]:
        """Queries, keys and values (as the letters say) of a layer's heads, from a stream that has changed."""
        assert self.x is not None
        block = self.recording.model.blocks[layer - 1]
        if self.rows is None:
            results = list(project(apply(block.ln1, self.x), block.attn, letters))
        else:
            index, results = self.rows[..., None, None], []
            fresh_rows = project(apply(block.ln1, take(self.x, self.rows)), block.attn, letters)
            for letter, fresh in zip(letters, fresh_rows, strict=True):
                recorded = self._intact(self.recording.layer(layer, f"attn.hook_{letter}"))
                results.append(recorded.scatter(2, index.expand_as(fresh), fresh))
        return [self._with_reads(layer, letter, result) for letter, result in zip(letters, results, strict=True)]

    def _with_reads(self, layer: int, letter: str, result: Tensor) -> Tensor:
        """The same with the patches of these inputs applied."""
        assert self.x is not None
        block = self.recording.model.blocks[layer - 1]
        W, b = _weights(block.attn, letter)
        sites = [f"{head}.{letter}" for head in self.recording.graph.heads_of(layer)]
        if not any(self._patched(site) for site in sites):
            return result
        result = result.clone()
        for h, site in enumerate(sites):
            for i, change in self._changes(site).items():
                result[i, :, :, h] = apply(block.ln1, self.x[i] + change) @ W[h] + b[h]
            for i, patch in self.nodes[site]:
                result[i, :, :, h] = self._blend(result[i, :, :, h].clone(), patch)
        return result

    def _feed_forward(self, layer: int, before: Tensor | None) -> None:
        recording, name = self.recording, f"FF{layer}"
        block, changes = recording.model.blocks[layer - 1], self._changes(name)

        def map_(x: Tensor) -> Tensor:
            return apply(block.mlp, apply(block.ln2, x))

        if recording.graph.parallel:
            stream = before if before is None else self._pick(before)
        else:
            stream = self.x
        out, rows = self._intact(recording.layer(layer, "hook_mlp_out")), None
        if stream is not None and self.rows is None:
            out = map_(stream)
        elif stream is not None and self.rows is not None:
            fresh, rows = map_(take(stream, self.rows)), self.rows
            out = out.scatter(2, self.rows[..., None].expand_as(fresh), fresh)
        if changes:
            own = self._read(layer) if stream is None else stream
            out, rows = out.clone(), None
            for i, change in changes.items():
                out[i] = map_(own[i] + change)
        if self.nodes[name]:
            out, rows = self._replaced(name, out), None
            if self.x is None and not changes:
                rows = self._patched_rows([name])
        if self.x is None and not changes and not self.nodes[name]:
            return
        if stream is None and not changes and not self.nodes[name]:
            rows = self.rows  # parallel: the heads alone have changed
        if name in self.sources:
            self.written[name] = out
        self.x = (self._after_heads(layer) if self.x is None else self.x) + out
        self.rows = rows

    def _read(self, layer: int) -> Tensor:
        """What an intact feed-forward reads."""
        pre = self._intact(self.recording.layer(layer, "hook_resid_pre"))
        return pre if self.recording.graph.parallel else self._after_heads(layer)

    def _after_heads(self, layer: int) -> Tensor:
        pre, out = (self.recording.layer(layer, hook) for hook in ("hook_resid_pre", "hook_attn_out"))
        return self._intact(pre + out)

    def _replaced(self, name: str, own: Tensor) -> Tensor:
        """A writer's output with its patches applied."""
        if not self.nodes[name]:
            return own
        new = own.clone()
        for i, patch in self.nodes[name]:
            new[i] = self._blend(new[i].clone(), patch)
        return new

    def _changes(self, name: str) -> dict[int, Tensor]:
        """Variant -> what its patched edges add to an input."""
        changes: dict[int, Tensor] = {}
        for i, source, patch in self.edges[name]:
            own = self.written[source][i] if source in self.written else self._pick(self.recording.at(source))
            change = self._blend(own, patch) - own
            changes[i] = changes[i] + change if i in changes else change
        return changes

    def _blend(self, own: Tensor, patch: Patch) -> Tensor:
        """An activation with a patch applied."""
        value = self._pick(patch.value.expand(*self.recording.tokens.shape, -1))
        return patch.blend(own, value, None if patch.where is None else self._pick(patch.where.unsqueeze(-1)))

    def _intact(self, recorded: Tensor) -> Tensor:
        """A recorded activation, the same for every variant."""
        return self._pick(recorded).expand(len(self.variants), *(-1,) * recorded.dim())

    def _patched(self, site: str) -> set[int]:
        """The variants that patch what a head reads at a site."""
        return {i for i, _ in self.nodes[site]} | {i for i, _, _ in self.edges[site]}

    def _pick(self, x: Tensor) -> Tensor:
        """Of something that has all positions, the queries' rows once only those are left."""
        return take(x, self.queries) if self.late and self.queries is not None else x

    def _pick_heads(self, x: Tensor) -> Tensor:
        """The same of something with heads, [variant, batch, pos, head, d_head]."""
        return self._pick(x.flatten(-2)).unflatten(-1, x.shape[-2:])

    def _patched_rows(self, names: Sequence[str]) -> Tensor | None:
        """[variant, batch, rows]: the positions that the patches of these writers change; None when they are many."""
        patches = [(i, patch) for name in names for i, patch in self.nodes[name]]
        if self.late or any(patch.where is None for _, patch in patches):
            return None
        batch, pos = self.recording.tokens.shape
        mask = torch.zeros(len(self.variants), batch, pos, dtype=torch.bool)
        for i, patch in patches:
            assert patch.where is not None
            mask[i] |= patch.where
        count = int(mask.sum(-1).max())
        if count > pos // 4:
            return None
        return mask.int().topk(max(count, 1), dim=-1).indices  # where fewer change, some others are computed again


def _weights(attention: Any, letter: str) -> tuple[Tensor, Tensor]:
    return getattr(attention, f"W_{letter.upper()}"), getattr(attention, f"b_{letter.upper()}")
