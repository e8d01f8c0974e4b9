"""A group of variants on their way through the layers: where each is patched, and how far its stream has changed.

The stream x of all variants is kept on a new first axis. As long as every variant has the recorded stream, x is None
and nothing is held. `rows` are the only positions at which x can differ from the recording, where these are few. Once
the last layer has its queries, only the rows of the requested positions are kept (`late`).
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.runner.attention import take
from induction_memory.runner.components import ARROW
from induction_memory.runner.network import Network
from induction_memory.runner.recording import Recording
from induction_memory.runner.variants import Patch, Variant


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
