"""Attention patterns imposed on a model in place of its own softmax.

    previous token (first layer)   P[t, t-1] = 1, and P[1, 1] = 1
    induction (last layer)         P[t, s] = 1/n for the n positions s <= t whose previous token z_{s-1} is z_t;
                                   uniform over s <= t where there is none

Position 1 has no previous token and never matches. Every head of the layer gets the pattern. The scores receive no
gradient, and so the queries and keys of that layer receive none either.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import causal
from induction_memory.task.ideals import after_same_context


@dataclass(frozen=True)
class Clamps:
    """Which layers have their attention pattern imposed."""

    previous_token: bool = False
    """Layer 1 attends to the previous position."""
    induction: bool = False
    """The last layer attends to what followed earlier occurrences of the current token."""

    def kind(self, layer: int, n_layers: int) -> str | None:
        """What is imposed on a layer, counted from 0: "previous-token", "induction" or nothing."""
        require(
            not (self.previous_token and self.induction and n_layers == 1),
            "clamps",
            "one clamp per layer",
            "both on a model of one layer",
        )
        if self.previous_token and layer == 0:
            return "previous-token"
        if self.induction and layer == n_layers - 1:
            return "induction"
        return None


def clamped_pattern(kind: str, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query key"]:
    """The imposed pattern of each sequence."""
    return previous_token_pattern(tokens) if kind == "previous-token" else induction_pattern(tokens)


def previous_token_pattern(tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query key"]:
    """All attention on the position before; the first position on itself."""
    batch, pos = tokens.shape
    pattern = torch.zeros(pos, pos, device=tokens.device)
    at = torch.arange(pos, device=tokens.device)
    pattern[at, (at - 1).clamp(min=0)] = 1
    return pattern.expand(batch, pos, pos)


def induction_pattern(tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch query key"]:
    """All attention, evenly, on the positions after earlier occurrences of the token at the query."""
    match = after_same_context(tokens)
    match |= causal(tokens.shape[1], tokens.device) & ~match.any(-1, keepdim=True)
    pattern = match.float()
    return pattern / pattern.sum(-1, keepdim=True)
