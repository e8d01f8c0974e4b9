"""Run a model with some of its parts replaced: many patched runs in one batch, nothing computed twice.

A patch puts a value at a site (the vocabulary is in components.py): with `amount` a and the run's own activation y,

    writer or q, k, v of a head     y  <-  y + a (value - y)
    edge writer -> input            x_input  <-  x_input + a (value - y_writer)

and everything downstream is recomputed with the model's own weights and modules. A *variant* is a set of patches. The
variants of a call are stacked on a new first axis; up to the first patched place everything is read from the recording
of the intact run, later only what has changed is computed:

- an edge into the keys of a head costs those keys, the attention and what follows;
- a patch of a few positions recomputes queries, keys and values there only, in the layer that reads it first;
- where the logits are wanted at some queries only, the last layer computes those rows only.

It equals the HookedTransformer with hooks, one forward a variant, to float32's rounding, and differentiates in
`amount`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.interventions.components import ARROW, head_of
from induction_memory.interventions.layers import apply, attend, combine, project, take, unembed
from induction_memory.interventions.recording import Recording

TOKENS_AT_ONCE = 4096  # of all variants in one pass: enough to fill the multiplications, few enough for the caches


@dataclass(frozen=True)
class Patch:
    """Put `value` at `site`."""

    site: str
    """`L1H1`, `L2H1.k`, `L1H1->L2H1.k` ..."""
    value: Float[Tensor, "#batch #pos d"]
    """What to put there; for an edge, what its source is to have written."""
    where: Bool[Tensor, "batch pos"] | None = None
    """The positions to replace; all when not given."""
    amount: float | Float[Tensor, ""] = 1.0
    """How far to go from the run's own activation (0) to the value (1)."""


Variant = Sequence[Patch]


def run(
    recording: Recording, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
) -> Iterator[tuple[list[int], Float[Tensor, "variant batch m vocab"]]]:
    """Logits of every variant, in groups: (which variants, their logits). At all positions, or at `queries` only.

    The groups put together variants that first differ at the same place; each is as large as memory should hold.
    """
    known = {*recording.graph.writers, *recording.graph.inputs[:-1], *recording.graph.edges}
    depth: dict[int, list[int]] = defaultdict(list)
    for index, variant in enumerate(variants):
        for patch in variant:
            assert patch.site in known, f"no site {patch.site}"
        depth[min((_depth(recording, patch) for patch in variant), default=0)].append(index)
    at_once = max(1, TOKENS_AT_ONCE // recording.tokens.numel())
    for _, indices in sorted(depth.items()):
        for start in range(0, len(indices), at_once):
            chosen = indices[start : start + at_once]
            yield chosen, _Pass(recording, [variants[i] for i in chosen], queries).logits()


def logits(
    recording: Recording, variants: Sequence[Variant], *, queries: Int[Tensor, "batch m"] | None = None
) -> Float[Tensor, "variant batch m vocab"]:
    """The logits of every variant in the order given, all in memory."""
    require(len(variants) > 0, "variants", "at least one", 0)
    parts: dict[int, Tensor] = {}
    for indices, group in run(recording, variants, queries=queries):
        parts |= dict(zip(indices, group, strict=True))
    return torch.stack([parts[i] for i in range(len(variants))])


def _depth(recording: Recording, patch: Patch) -> int:
    """Where in the computation a patch first matters; sites that read or write at one place share a number."""
    inputs = recording.graph.inputs
    if ARROW in patch.site:
        name = patch.site.split(ARROW)[1]
    elif "." in patch.site:
        name = patch.site
    else:  # a writer matters from the first input that reads it
        name = next(name for name in inputs if patch.site in recording.graph.writers_before(name))
    place = 3 * recording.graph.n_layers
    if name != "out":
        layer = int(name[2:]) if name.startswith("FF") else head_of(name)[0]
        place = 3 * layer - 2 if name.startswith("FF") else 3 * layer - 3
    return place


class _Pass:
    """One forward of a group of variants. `x` is None as long as the stream of every variant is the intact one."""

    def __init__(self, recording: Recording, variants: Sequence[Variant], queries: Tensor | None) -> None:
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
        model, graph = self.recording.model, self.recording.graph
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
        return unembed(model, stream)

    def _embedding(self, name: str) -> None:
        if not self.nodes[name]:
            return
        own = self._intact(self.recording.at(name))
        new = self._replaced(name, own)
        self.rows = self._patched_rows([name]) if self.x is None else None
        self.x = (self._intact(self.recording.layer(1, "hook_resid_pre")) if self.x is None else self.x) + (new - own)
        self.written[name] = new

    def _attention(self, layer: int) -> None:
        recording, attention = self.recording, self.recording.model.blocks[layer - 1].attn
        heads = recording.graph.heads_of(layer)
        (q, q_moved), (k, k_moved), (v, v_moved) = (self._projection(layer, letter) for letter in "qkv")
        changed = q_moved or k_moved or v_moved
        stream = self._intact(recording.layer(layer, "hook_resid_pre")) if self.x is None else self.x
        if layer == recording.graph.n_layers and self.queries is not None:
            stream = take(stream, self.queries)
            self.written = {name: take(value, self.queries) for name, value in self.written.items()}
            self.late = True
        if not changed and not any(self.nodes[head] for head in heads):
            return
        if changed:
            z = attend(attention, q, k, v, self.queries if self.late else None)
            out = combine(attention, z)
        else:
            z, out = None, self._intact(recording.layer(layer, "hook_attn_out"))
        for index, head in enumerate(heads):
            if not self.nodes[head] and not (changed and head in self.sources):
                continue
            own = self._intact(recording.at(head)) if z is None else z[..., index, :] @ attention.W_O[index]
            new = self._replaced(head, own)
            if new is not own:
                out = out + (new - own)
            self.written[head] = new
        self.rows = None if changed else self._patched_rows(heads)
        self.x = stream + out

    def _projection(self, layer: int, letter: str) -> tuple[Tensor, bool]:
        """Queries, keys or values of a layer's heads [variant, batch, pos, head, d_head]; whether they have changed."""
        recording, block = self.recording, self.recording.model.blocks[layer - 1]
        W, b = getattr(block.attn, f"W_{letter.upper()}"), getattr(block.attn, f"b_{letter.upper()}")
        result = self._intact(recording.layer(layer, f"attn.hook_{letter}"))
        if self.x is not None and self.rows is None:
            result = project(apply(block.ln1, self.x), W, b)
        elif self.x is not None and self.rows is not None:
            fresh = project(apply(block.ln1, take(self.x, self.rows)), W, b)
            result = result.scatter(2, self.rows[..., None, None].expand_as(fresh), fresh)
        heads = recording.graph.heads_of(layer)
        sites = [f"{head}.{letter}" for head in heads]
        if not any(self.nodes[site] or self.edges[site] for site in sites):
            return result, self.x is not None
        result = result.clone()
        for index, site in enumerate(sites):
            for i, change in self._changes(site).items():
                stream = recording.layer(layer, "hook_resid_pre") if self.x is None else self.x[i]
                result[i, :, :, index] = apply(block.ln1, stream + change) @ W[index] + b[index]
            for i, patch in self.nodes[site]:
                result[i, :, :, index] = self._blend(result[i, :, :, index].clone(), patch)
        return result, True

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
        """own + amount (value - own), where the patch applies."""
        value = self._pick(patch.value.expand(*self.recording.tokens.shape, -1))
        whole = isinstance(patch.amount, float) and patch.amount == 1.0
        new = value if whole else own + patch.amount * (value - own)
        return new if patch.where is None else torch.where(self._pick(patch.where.unsqueeze(-1)), new, own)

    def _intact(self, recorded: Tensor) -> Tensor:
        """A recorded activation, the same for every variant."""
        return self._pick(recorded).expand(len(self.variants), *(-1,) * recorded.dim())

    def _pick(self, x: Tensor) -> Tensor:
        """Of something that has all positions, the queries' rows once only those are left."""
        return take(x, self.queries) if self.late and self.queries is not None else x

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
