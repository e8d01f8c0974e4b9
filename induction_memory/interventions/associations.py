"""What each memory of an induction head associates, as something that can be read and written back.

    memory   matrix          inputs u           outputs v            ideal pairs          asked where
    W_K1     [d_head, d]     keys p_s           queries W_Q p_t      t - 1 -> t           the first output stands at t
    W_K2     [d_head, d]     keys Phi_1 w_E(k)  queries W_Q w_E(k)   k -> k               the query is k
    W_O2     [d, d_head]     values W_V2 w_E(k) w_U(k)               k -> k               the right output is k
    W_F      [d, d]          w_E(k)             w_U(j)               likely k -> j        the input is k

With W_Q = I these are the paper's matrices and embeddings (equation 4). A LayerNorm in front of a matrix acts on its
inputs by its linear part, centring and gain. With several heads each has its own matrix; the keys of layer 2 are read
as layer 1's head `through` writes them. Pairs are written `a->b`, input then output, in tokens, or for W_K1 in
positions counted from 1; one name alone stands for its ideal pair.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens import HookedTransformer

from induction_memory.errors import InputError, require
from induction_memory.model.memories import embedding
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch

MEMORIES = ("W_K1", "W_K2", "W_O2", "W_F")
LIKELY = 0.05  # a bigram of at least this probability belongs to the ideal W_F


@dataclass(frozen=True, eq=False)
class Association:
    """A memory of a model: its matrices, one a head, with the embeddings it maps between."""

    memory: str
    parameter: str
    """Its name in the HookedTransformer, where it is stored transposed."""
    W: Float[Tensor, "head d_out d_in"]
    inputs: Float[Tensor, "head n d_in"]
    outputs: Float[Tensor, "head m d_out"]
    task: BigramTask

    @property
    def ideal(self) -> list[tuple[int, int]]:
        """The pairs (input, output) of the paper's construction, numbered from 0."""
        if self.memory == "W_K1":
            return [(s, s + 1) for s in range(self.inputs.shape[1] - 1)]
        if self.memory == "W_F":
            return [(int(i), int(j)) for i, j in torch.from_numpy(self.task.bigram >= LIKELY).nonzero().tolist()]
        return [(k, k) for k in range(self.inputs.shape[1])]

    def parse(self, text: str, field: str) -> tuple[int, int]:
        """`a->b`, or `a` for its ideal pair, as numbers of an input and an output."""
        before, arrow, after = text.partition("->") if text != "->" else (text, "", "")
        if not arrow and self.memory == "W_F":
            raise InputError(f"{field}: expected a pair 'a->b' for W_F, got {text!r}")
        first = self._number(before, field)
        if arrow:
            return first, self._number(after, field)
        pairs = dict(self.ideal)
        require(first in pairs, field, "a position that has a next one", text)
        return first, pairs[first]

    def asked(self, batch: Batch, pairs: list[tuple[int, int]]) -> Bool[Tensor, "batch pos"]:
        """The positions that rely on these pairs."""
        inputs, outputs = (torch.tensor(sorted(set(side))) for side in zip(*pairs, strict=True))
        if self.memory == "W_K2":
            return torch.isin(batch.tokens, outputs) & batch.in_context
        if self.memory == "W_O2":
            return torch.isin(batch.targets, inputs) & batch.in_context
        if self.memory == "W_F":
            return torch.isin(batch.tokens, inputs) & batch.global_
        same = (batch.tokens[:, None, :] == batch.tokens[:, :, None]).tril(-1)
        first_output = same.int().argmax(-1) + 1
        return torch.isin(first_output, outputs) & (batch.counts == 2)

    def rows(
        self, pairs: list[tuple[int, int]]
    ) -> tuple[Float[Tensor, "head pair d_in"], Float[Tensor, "head pair d_out"]]:
        """The embeddings of the pairs."""
        inputs, outputs = (torch.tensor(side) for side in zip(*pairs, strict=True))
        return self.inputs[:, inputs], self.outputs[:, outputs]

    def _number(self, name: str, field: str) -> int:
        if self.memory == "W_K1":
            last = self.inputs.shape[1]
            known = name.strip().isdigit() and 1 <= int(name) <= last
            require(known, field, f"positions 1 to {last}", repr(name))
            return int(name) - 1
        vocabulary = self.task.vocabulary
        readable = name.encode().decode("unicode_escape") if name.startswith("\\") else name
        shown = "".join(vocabulary) if all(len(token) == 1 for token in vocabulary) else vocabulary
        require(readable in vocabulary, field, f"tokens of the vocabulary {shown!r}", repr(name))
        return vocabulary.index(readable)


def association(model: HookedTransformer, memory: str, task: BigramTask, *, through: int = 1) -> Association:
    """The memory `W_K1`, `W_K2`, `W_O2` or `W_F` of a model with two layers."""
    require(memory in MEMORIES, "memory", f"one of {', '.join(MEMORIES)}", repr(memory))
    require(model.cfg.n_layers == 2, "memory", "a model with two layers", f"one with {model.cfg.n_layers}")
    heads = f"a head of layer 1, 1 to {model.cfg.n_heads}"
    require(1 <= through <= model.cfg.n_heads, "through", heads, through)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if memory == "W_F":
        name = "blocks.1.mlp.W_F"
        require(name in parameters, "memory", "a model with a linear feed-forward for W_F", "one without")
        w_E = _normed(parameters, "blocks.1.ln2", embedding(model, "w_E"))
        return Association(memory, name, parameters[name].mT[None], w_E[None], embedding(model, "w_U")[None], task)
    name = f"blocks.{int(memory[-1]) - 1}.attn.{memory[:-1]}"
    W = parameters[name].mT
    if memory == "W_O2":
        inputs, outputs = embedding(model, "W_V2 w_E"), embedding(model, "w_U")
        inputs = inputs if inputs.dim() == 3 else inputs[None]
        return Association(memory, name, W, inputs, outputs.expand(len(W), -1, -1), task)
    rows = embedding(model, "p" if memory == "W_K1" else "w_E")
    keys = rows
    if memory == "W_K2":
        remapped = embedding(model, "Phi_1 w_E")
        keys = remapped if remapped.dim() == 2 else remapped[through - 1]
    norm = f"blocks.{int(memory[-1]) - 1}.ln1"
    queries = _normed(parameters, norm, rows) @ parameters[name.replace("W_K", "W_Q")]
    return Association(memory, name, W, _normed(parameters, norm, keys).expand(len(W), -1, -1), queries, task)


def _normed(parameters: Any, norm: str, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The linear part of a LayerNorm: centring and gain."""
    if f"{norm}.w" not in parameters:
        return rows
    return (rows - rows.mean(-1, keepdim=True)) * parameters[f"{norm}.w"]
