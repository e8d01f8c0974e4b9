"""A model with only some of its heads: all coalitions of heads at once, sharing what they have in common.

A head that is not in the coalition writes its replacement r_h instead of its own output y_h (what an ablation puts
there: `interventions.replacements`). Up to layer l a run depends only on who is present in layers 1 to l, so the
coalitions form a tree over the layers:

    x_1 = the recorded stream
    x_{l+1} = x_l + sum over h present of y_h(x_l) + sum over h absent of r_h  (+ the feed-forward)

Attention is worked out once for each way in which the earlier layers can be staffed, never for the first layer, and not
in the last layer again for each of its subsets, whose outputs are sums of the same terms, at the questions only. With
four heads in two layers, 256 coalitions need 15 attention layers instead of 512.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from induction_memory.heads.questions import Questions
from induction_memory.runner.recording import Recording

LOGITS_AT_ONCE = 2**24  # numbers in the logits of one group of coalitions


def coalition_sums(
    recording: Recording,
    absent: dict[str, Tensor],
    coalitions: Bool[Tensor, "coalition player"],
    questions: Questions,
) -> Float64[Tensor, "coalition batch"]:
    """The worth of each coalition, a sum a sequence. Players in the order of `recording.graph.heads`."""
    result = torch.zeros(len(coalitions), len(recording.tokens), dtype=torch.float64)
    with torch.no_grad():
        _Tree(recording, absent, coalitions, questions, result).descend(1, None, torch.arange(len(coalitions)))
    return result


class _Tree:
    def __init__(
        self, recording: Recording, absent: dict[str, Tensor], coalitions: Tensor, questions: Questions, result: Tensor
    ) -> None:
        self.recording, self.absent, self.coalitions = recording, absent, coalitions
        self.questions, self.result = questions, result
        self.model: Any = recording.model

    def descend(self, layer: int, stream: Tensor | None, members: Int[Tensor, " coalition"]) -> None:
        """Work out the coalitions `members`, whose runs have the same stream before `layer` (None: the recorded)."""
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
                heads = torch.where(subset[:, None], present, absent).sum(-2)
                after = self._feed_forward(layer, before, before + heads + self.model.blocks[layer - 1].attn.b_O)
            self.descend(layer + 1, after, members[which == i])

    def _read_out(self, stream: Tensor | None, subsets: Bool[Tensor, "subset head"]) -> Float64[Tensor, "subset batch"]:
        """The worth of each subset of the last layer's heads."""
        layer = self.recording.graph.n_layers
        before = self.recording.layer(layer, "hook_resid_pre") if stream is None else stream
        before, present, absent = (
            _rows(x, self.questions.queries) for x in (before, self._written(layer, stream), self._absent(layer))
        )
        chosen = torch.einsum("sh,bmhd->sbmd", subsets.to(present.dtype), present - absent) + absent.sum(-2)
        x = before + chosen + self.model.blocks[layer - 1].attn.b_O
        x = self._feed_forward(layer, before.expand_as(x), x).flatten(0, 1)
        if self.model.cfg.normalization_type is not None:
            x = self.model.ln_final(x)
        logits = x @ self.model.unembed.W_U + self.model.unembed.b_U
        return self.questions.sums(logits.unflatten(0, (len(subsets), -1)))

    def _written(self, layer: int, stream: Tensor | None) -> Float[Tensor, "batch pos head d_model"]:
        """What each head of a layer writes: as recorded, or from another stream by the model's own attention."""
        if stream is None:
            return torch.stack([self.recording.at(head) for head in self.recording.graph.heads_of(layer)], dim=-2)
        block, kept = self.model.blocks[layer - 1], []
        with self.model.hooks(fwd_hooks=[(f"blocks.{layer - 1}.attn.hook_z", lambda z, hook: kept.append(z))]):
            read = block.ln1(stream)
            block.attn(query_input=read, key_input=read, value_input=read)
        return torch.einsum("bphe,hed->bphd", kept[0], block.attn.W_O)

    def _absent(self, layer: int) -> Float[Tensor, "batch pos head d_model"]:
        heads, shape = self.recording.graph.heads_of(layer), self.recording.tokens.shape
        return torch.stack([self.absent[head].expand(*shape, -1) for head in heads], dim=-2)

    def _feed_forward(self, layer: int, before: Tensor, x: Tensor) -> Tensor:
        """The stream after the layer's feed-forward, where it has one."""
        graph, block = self.recording.graph, self.model.blocks[layer - 1]
        if layer not in graph.feed_forwards:
            return x
        read = before if graph.parallel else x
        return x + block.mlp(block.ln2(read.flatten(0, -3))).view_as(x)

    def _at_once(self) -> int:
        batch, m = self.questions.queries.shape
        return max(1, LOGITS_AT_ONCE // (batch * m * self.model.cfg.d_vocab))


def _rows(x: Float[Tensor, "batch pos *rest"], positions: Int[Tensor, "batch m"]) -> Float[Tensor, "batch m *rest"]:
    return x[torch.arange(len(x))[:, None], positions]
