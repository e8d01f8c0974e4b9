"""What a matrix associates (Section 4.1): the one type that recall, edits and the ideal memory all read.

A matrix W stores the pair (u_i, v_j) with the strength of its score:

    score of (i, j) = v_j^T W u_i,      the ideal memory W_* = sum over i, j of ideal_ji v_j u_i^T   (equation 3)

Recall fixes one side, `given`, and the items of the other side compete. An output matrix fixes the input, so outputs
compete. Attention fixes the query (an output, in the paper's orientation), so keys compete: this is what the authors
measured. The formula as the paper prints it fixes the input, also for attention: `reversed`.

All leading axes (steps, heads, pairs of heads) broadcast against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import InputError, UnsupportedError, require
from induction_memory.field_docs import field_docs

Side = Literal["input", "output"]
Names = Sequence[str | int]
"""Tokens, or positions as numbers."""


@field_docs
@dataclass(frozen=True, eq=False)
class Association:
    """A matrix, the embeddings it maps between, and the pairs it should store.

    >>> import torch
    >>> import induction_memory as im
    >>> u, v = torch.eye(3), torch.eye(3)
    >>> swapped = im.memory.Association("mine", v[:, [1, 0, 2]], u, v, ideal=torch.eye(3))
    >>> im.memory.recall(swapped)
    tensor(0.3333, dtype=torch.float64)
    """

    name: str
    """`W_K2`, `W_K1[0:64]`, `W_O2_spurious` ..."""
    W: Float[Tensor, "*#lead d_out d_in"]
    """The matrix in the paper's orientation."""
    inputs: Float[Tensor, "*#lead i d_in"]
    """u: keys for W_K, values for W_O2, tokens for W_F."""
    outputs: Float[Tensor, "*#lead j d_out"]
    """v: queries for W_K, output embeddings for W_O2 and W_F."""
    ideal: Float[Tensor, "j i"]
    """How strongly the ideal memory stores each pair; 0 for a pair it does not store."""
    given: Side = "input"
    """The side that recall fixes; the other side competes."""
    asked: Bool[Tensor, "j i"] | None = None
    """The pairs that recall counts; None for the pairs of the ideal memory."""
    allowed: Bool[Tensor, "j i"] | None = None
    """The candidates that compete, e.g. under a causal mask; None for all."""
    heads: tuple[str, ...] = ("",)
    """Names of the heads along the leading axes after the step: `L2H1`, or `L1H3>L2H1` for a pair."""
    input_names: tuple[str | int, ...] = ()
    """Tokens or positions, counted from 1, of the inputs."""
    output_names: tuple[str | int, ...] = ()
    """Tokens or positions, counted from 1, of the outputs."""

    @cached_property
    def scores(self) -> Float[Tensor, "*lead j i"]:
        """All v_j^T W u_i, multiplied from the fixed side."""
        if self.given == "output":
            return self.outputs @ self.W @ self.inputs.mT
        return (self.inputs @ self.W.mT @ self.outputs.mT).mT

    @cached_property
    def table(self) -> Float[Tensor, "*lead given candidate"]:
        """The scores that recall compares: one row per item, one column per candidate."""
        scores = self.scores if self.given == "output" else self.scores.mT
        return scores if len(self.items) == scores.shape[-2] else scores[..., self.items, :]

    @cached_property
    def items(self) -> Int[Tensor, " n"]:
        """The items of the fixed side that have a target."""
        return self._partners.any(-1).nonzero().flatten()

    @cached_property
    def targets(self) -> Int[Tensor, " n"]:
        """The target of each item; refused if an item has several."""
        partners = self._partners[self.items]
        several = (partners.sum(-1) > 1).nonzero().flatten().tolist()
        if several:
            raise UnsupportedError(f"needs one target for each item of {self.name}, items {several[:5]} have several")
        targets = partners.int().argmax(-1)
        rows = torch.arange(len(targets), device=targets.device)
        if self.allowed is not None:
            missing = (~self.candidates[rows, targets]).nonzero().flatten().tolist()
            require(not missing, "allowed", "every target among its candidates", f"none for items {missing[:5]}")
        return targets

    @cached_property
    def candidates(self) -> Bool[Tensor, "n candidate"]:
        """Which candidates compete for each item."""
        if self.allowed is None:
            shape = (len(self.items), self._partners.shape[-1])
            return torch.ones(shape, dtype=torch.bool, device=self.ideal.device)
        return (self.allowed if self.given == "output" else self.allowed.mT)[self.items]

    @cached_property
    def rivals(self) -> Bool[Tensor, "n candidate"]:
        """The candidates without the target."""
        return self.candidates.scatter(-1, self.targets.unsqueeze(-1), False)

    @property
    def _partners(self) -> Bool[Tensor, "given candidate"]:
        pairs = self.ideal != 0 if self.asked is None else self.asked
        return pairs if self.given == "output" else pairs.mT

    @property
    def pairs(self) -> Int[Tensor, "pair side"]:
        """The pairs (input, output) that the ideal memory stores, by input."""
        return self.ideal.mT.nonzero()

    def reversed(self) -> "Association":
        """The same memory with the other side fixed: for attention, recall as the paper prints it."""
        other = replace(self, given="input" if self.given == "output" else "output")
        other.__dict__["scores"] = self.scores
        return other

    def at(
        self,
        inputs: Sequence[int] | slice | Int[Tensor, " m"] = slice(None),
        outputs: Sequence[int] | slice | Int[Tensor, " n"] = slice(None),
        name: str | None = None,
        allowed: Bool[Tensor, "j i"] | None = None,
    ) -> "Association":
        """The memory restricted to some inputs and outputs, and to the candidates in `allowed`.

        Scores that are already computed are not computed again.
        """
        i = inputs if isinstance(inputs, slice) else torch.as_tensor(inputs)
        j = outputs if isinstance(outputs, slice) else torch.as_tensor(outputs)
        allowed = self.allowed if allowed is None else allowed
        part = replace(
            self,
            name=name or self.name,
            inputs=self.inputs[..., i, :],
            outputs=self.outputs[..., j, :],
            ideal=self.ideal[j][:, i],
            asked=None if self.asked is None else self.asked[j][:, i],
            allowed=None if allowed is None else allowed[j][:, i],
            input_names=_chosen(self.input_names, i),
            output_names=_chosen(self.output_names, j),
        )
        if "scores" in self.__dict__:
            part.__dict__["scores"] = self.scores[..., j, :][..., i]
        return part

    def number(self, text: str, field: str) -> tuple[int, int]:
        """The numbers of the input and the output that `a->b` names; `a` alone is paired with its target."""
        i, j = named_pair(text, self.input_names, self.output_names, field)
        if j is not None:
            return i, j
        partners = (self.ideal != 0 if self.asked is None else self.asked)[:, i].nonzero().flatten().tolist()
        if len(partners) != 1:
            raise InputError(f"{field}: expected a pair 'a->b' for {self.name}, got {text!r}")
        return i, partners[0]


def matching(
    W: Float[Tensor, "*#lead d_out d_in"],
    inputs: Float[Tensor, "*#lead i d_in"],
    outputs: Float[Tensor, "*#lead j d_out"],
    targets: Int[Tensor, " i"] | None = None,
    *,
    given: Side = "input",
    allowed: Bool[Tensor, "j i"] | None = None,
    name: str = "W",
) -> Association:
    """The association of input i with output targets[i], by default with output i.

    A target of -1 means that the input has no partner.

    >>> matching(torch.eye(3), torch.eye(3), torch.eye(3), name="identity").targets
    tensor([0, 1, 2])
    """
    n_outputs, n_inputs = outputs.shape[-2], inputs.shape[-2]
    if targets is None:
        require(n_inputs == n_outputs, "targets", f"one for each of the {n_inputs} inputs", "none")
        targets = torch.arange(n_inputs, device=W.device)
    require(len(targets) == n_inputs, "targets", f"one for each of the {n_inputs} inputs", len(targets))
    require(int(targets.max()) < n_outputs, "targets", f"below {n_outputs}, the outputs", int(targets.max()))
    stored = (targets >= 0).nonzero().flatten()
    require(len(stored) > 0, "targets", "at least one that is not -1", "none")
    ideal = torch.zeros(n_outputs, n_inputs, dtype=W.dtype, device=W.device)
    ideal[targets[stored], stored] = 1
    return Association(name, W, inputs, outputs, ideal, given, allowed=allowed)


def store(
    inputs: Float[Tensor, "*#lead i d_in"],
    outputs: Float[Tensor, "*#lead j d_out"],
    ideal: Float[Tensor, "j i"] | None = None,
) -> Float[Tensor, "*lead d_out d_in"]:
    """W = sum over i, j of ideal_ji v_j u_i^T; without `ideal`, each input with the output of the same number.

    >>> store(torch.eye(2), torch.eye(2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return outputs.mT @ inputs if ideal is None else outputs.mT @ ideal.to(inputs) @ inputs


def causal(n: int, device: torch.device | None = None) -> Bool[Tensor, "query key"]:
    """The mask of a decoder: position `query` may choose among `key` <= `query`.

    >>> import induction_memory as im
    >>> im.memory.causal(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


def _chosen(names: tuple[str | int, ...], which: slice | Tensor) -> tuple[str | int, ...]:
    if not names:
        return ()
    return names[which] if isinstance(which, slice) else tuple(names[n] for n in which.tolist())


def named_pair(text: str, inputs: Names, outputs: Names, field: str) -> tuple[int, int | None]:
    """The numbers of the input and the output that `a->b` names; no output for `a` alone.

    Between positions the input is a key and the output its query. A key after its query is refused.

    >>> named_pair("a->c", "abc", "abc", "erase"), named_pair("b", "abc", "abc", "erase")
    ((0, 2), (1, None))
    """
    before, arrow, after = text.partition("->") if text != "->" else (text, "", "")
    i = _place(inputs, before, field)
    if not arrow:
        return i, None
    j = _place(outputs, after, field)
    key, query = inputs[i], outputs[j]
    if isinstance(key, int) and isinstance(query, int):
        allowed = f"'key->query' with a key that the query can see (up to {query})"
        require(key <= query, field, allowed, repr(text))
    return i, j


def _place(names: Names, text: str, field: str) -> int:
    """The number of a name among tokens or positions."""
    if names and isinstance(names[0], int):
        known = text.strip().isdigit() and int(text) in names
        require(known, field, f"positions {names[0]} to {names[-1]}", repr(text))
        return names.index(int(text))
    readable = text if text in names else _unescaped(text)
    shown = "".join(map(str, names)) if all(len(str(name)) == 1 for name in names) else names
    require(readable in names, field, f"tokens of the vocabulary {shown!r}", repr(text))
    return names.index(readable)


def _unescaped(text: str) -> str:
    """The text with an escape such as \\n read; itself if it has none."""
    try:
        return text.encode("ascii").decode("unicode_escape") if text.startswith("\\") else text
    except UnicodeError:
        return text
