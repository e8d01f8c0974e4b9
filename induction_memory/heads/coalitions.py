"""A model with only some of its heads: all coalitions of heads at once, sharing what they have in common.

A head outside the coalition writes its replacement r_h instead of its own output y_h (the replacement of an ablation,
`interventions.replacements`). Up to layer l a run depends only on the heads present in layers 1 to l, so the coalitions
form a tree over the layers:

    x_1 = the recorded stream
    x_{l+1} = x_l + sum over h present of y_h(x_l) + sum over h absent of r_h  (+ the feed-forward)

Attention is computed once for every subset of heads kept in the earlier layers. It is never computed for the first
layer, which was recorded. The subsets of the last layer's heads need no attention of their own: their outputs are sums
of the same terms, needed at the questions only. With four heads in two layers, 256 coalitions need 15 attention layers
instead of 512.
"""

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from induction_memory.heads.questions import Questions
from induction_memory.runner.attention import attend
from induction_memory.runner.fast import FastRunner
from induction_memory.runner.network import Network
from induction_memory.runner.recording import Recording
from induction_memory.runner.variants import Patch

LOGITS_AT_ONCE = 2**24  # numbers in the logits of one group of coalitions


def coalition_sums(
    recording: Recording,
    absent: dict[str, Tensor],
    coalitions: Bool[Tensor, "coalition player"],
    questions: Questions,
) -> Float64[Tensor, "coalition batch"]:
    """The value of each coalition, one sum per sequence. Players in the order of `recording.graph.heads`."""
    result = torch.zeros(len(coalitions), len(recording.tokens), dtype=torch.float64)
    runner = recording.runner
    with torch.no_grad():
        if isinstance(runner, FastRunner):
            with runner.network(recording) as network:
                tree = _Tree(recording, network, absent, coalitions, questions, result)
                tree.descend(1, None, torch.arange(len(coalitions)))
        else:
            variants = [_without(recording, absent, coalition) for coalition in coalitions]
            for indices, logits in recording.run(variants, queries=questions.queries):
                result[indices] = questions.sums(logits)
    return result


def _without(recording: Recording, absent: dict[str, Tensor], coalition: Bool[Tensor, " player"]) -> list[Patch]:
    """The patches that cut the heads outside a coalition."""
    pairs = zip(recording.graph.heads, coalition.tolist(), strict=True)
    return [Patch(head, absent[head]) for head, present in pairs if not present]


class _Tree:
    def __init__(
        self,
        recording: Recording,
        network: Network,
        absent: dict[str, Tensor],
        coalitions: Tensor,
        questions: Questions,
        result: Tensor,
    ) -> None:
        self.recording, self.network, self.absent, self.coalitions = recording, network, absent, coalitions
        self.questions, self.result = questions, result

    def descend(self, layer: int, stream: Tensor | None, members: Int[Tensor, " coalition"]) -> None:
        """Evaluate the coalitions `members`, whose runs have the same stream before `layer` (None: the recorded)."""
        graph = self.recording.graph
        players = slice((layer - 1) * graph.n_heads, layer * graph.n_heads)
        subsets, which = self.coalitions[members, players].unique(dim=0, return_inverse=True)
        if layer == graph.n_layers:
            for group in torch.arange(len(subsets)).split(self._at_once()):
                chosen = members[torch.isin(which, group)]
                self.result[chosen] = self._read_out(stream, subsets[group])[which[torch.isin(which, group)] - group[0]]
            return
        before = self.recording.layer(layer, "hook_resid_pre") if stream is None else stream
        present, absent = self._written(layer, stream), self._absent(layer)
        for i, subset in enumerate(subsets):
            if stream is None and bool(subset.all()):
                after = None
            else:
                heads = torch.where(subset[:, None].to(present.device), present, absent).sum(-2)
                after = self._feed_forward(layer, before, before + heads + self.network[layer].attention["b_O"])
            self.descend(layer + 1, after, members[which == i])

    def _read_out(self, stream: Tensor | None, subsets: Bool[Tensor, "subset head"]) -> Float64[Tensor, "subset batch"]:
        """The value of each subset of the last layer's heads."""
        layer = self.recording.graph.n_layers
        before = self.recording.layer(layer, "hook_resid_pre") if stream is None else stream
        before, present, absent = (
            _rows(x, self.questions.queries) for x in (before, self._written(layer, stream), self._absent(layer))
        )
        chosen = torch.einsum("sh,bmhd->sbmd", subsets.to(present), present - absent) + absent.sum(-2)
        x = before + chosen + self.network[layer].attention["b_O"]
        return self.questions.sums(self.network.unembed(self._feed_forward(layer, before.expand_as(x), x)))

    def _written(self, layer: int, stream: Tensor | None) -> Float[Tensor, "batch pos head d_model"]:
        """What each head of a layer writes: as recorded, or from another stream."""
        if stream is None:
            return torch.stack([self.recording.at(head) for head in self.recording.graph.heads_of(layer)], dim=-2)
        weights = self.network[layer]
        q, k, v = (one[None] for one in weights.project(weights.norm(stream), "qkv"))
        z = attend(weights.rotated(q), weights.rotated(k), v, weights.scale)[0]
        return torch.einsum("bphe,hed->bphd", z, weights.W_O)

    def _absent(self, layer: int) -> Float[Tensor, "batch pos head d_model"]:
        heads, shape = self.recording.graph.heads_of(layer), self.recording.tokens.shape
        return torch.stack([self.absent[head].expand(*shape, -1) for head in heads], dim=-2)

    def _feed_forward(self, layer: int, before: Tensor, x: Tensor) -> Tensor:
        """The stream after the layer's feed-forward, where it has one."""
        feed_forward = self.network[layer].feed_forward
        if feed_forward is None:
            return x
        return x + feed_forward(before if self.network.graph.parallel else x)

    def _at_once(self) -> int:
        batch, m = self.questions.queries.shape
        return max(1, LOGITS_AT_ONCE // (batch * m * self.recording.logits.shape[-1]))


def _rows(x: Float[Tensor, "batch pos *rest"], positions: Int[Tensor, "batch m"]) -> Float[Tensor, "batch m *rest"]:
    return x[torch.arange(len(x), device=x.device)[:, None], positions]
