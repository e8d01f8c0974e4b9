"""Sequences with one thing changed, so that what a model does differently can be traced to it.

At a query t, a trigger q seen before, the output o stands after each earlier occurrence s < t (z_s = q, z_{s+1} = o):

    output    z_{s+1} becomes another token: the right answer at the query changes with it
    trigger   z_s becomes another token: nothing before the query matches it any more
    first     the first occurrence is removed, its trigger and its output both replaced; later ones stay

Replacements are drawn from tokens that are neither triggers nor outputs of their sequence, nor what they replace. The
query itself and everything after it stay as they were. Only the tokens change: targets and counts are the clean ones.
Triggers that are their own output are no queries.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.task.sampler import Batch

Corruption = Literal["output", "trigger", "first"]
Query = Literal["second", "last"]


@dataclass(frozen=True)
class Pairs:
    """Clean sequences, the same corrupted, and where to look."""

    clean: Batch
    corrupted: Batch
    query: Int[Tensor, " batch"]
    """The position t of each sequence's query."""
    answer: Int[Tensor, " batch"]
    """The right output there."""
    other: Int[Tensor, " batch"]
    """What the corrupted sequence has in its place (corruption "output"), else the token that replaced it."""
    trigger_at: Int[Tensor, " batch"]
    """The first occurrence of the query's trigger; its output stands one later."""


def corrupt(batch: Batch, corruption: Corruption, rng: np.random.Generator, *, query: Query = "second") -> Pairs:
    """The sequences that have a query, each with its corrupted twin.

    The query is one occurrence in each sequence, chosen by `rng`: a trigger's second, or the last in-context position.
    """
    known = get_args(Corruption)
    require(corruption in known, "corruption", f"one of {', '.join(known)}", repr(corruption))
    require(query in get_args(Query), "query", "second or last", repr(query))
    possible = batch.counts == 2 if query == "second" else batch.in_context
    possible = possible & (batch.targets != batch.tokens)
    has_one = possible.any(1)
    require(bool(has_one.any()), "batch", "at least one sequence in which a trigger comes twice", "none")
    batch, possible = batch[has_one], possible[has_one]
    t = _last(possible) if query == "last" else _random(possible, rng)
    q, answer = _at(batch.tokens, t), _at(batch.targets, t)
    earlier = (batch.tokens == q[:, None]) & (torch.arange(batch.tokens.shape[1]) < t[:, None])
    first = earlier.int().argmax(1)
    after = torch.zeros_like(earlier)
    after[:, 1:] = earlier[:, :-1]
    new_trigger, new_output = _strangers(batch, rng)
    tokens = batch.tokens.clone()
    here = torch.arange(len(tokens))
    if corruption == "output":
        tokens = torch.where(after, new_output[:, None], tokens)
    elif corruption == "trigger":
        tokens = torch.where(earlier, new_trigger[:, None], tokens)
    else:
        tokens[here, first], tokens[here, first + 1] = new_trigger, new_output
    return Pairs(batch, replace(batch, tokens=tokens), t, answer, new_output, first)


def other_outputs(batch: Batch, rng: np.random.Generator) -> Batch:
    """The same sequences with the output of every trigger changed, everywhere it follows its trigger."""
    previous = torch.full_like(batch.tokens, -1)
    previous[:, 1:] = batch.tokens[:, :-1]
    tokens = batch.tokens.clone()
    for column in range(batch.triggers.shape[1]):
        trigger, output = batch.triggers[:, column, None], batch.outputs[:, column, None]
        after = (previous == trigger) & (batch.tokens == output)
        tokens = torch.where(after, _strangers(batch, rng)[1][:, None], tokens)
    return replace(batch, tokens=tokens)


def _strangers(batch: Batch, rng: np.random.Generator) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Two different tokens a sequence that are neither triggers nor outputs there, drawn from those in the batch."""
    present = torch.cat([batch.tokens.flatten(), batch.targets.flatten()]).unique()
    taken = torch.cat([batch.triggers, batch.outputs], dim=1)
    free = (present[None, :, None] != taken[:, None, :]).all(-1)
    fewest = int(free.sum(1).min()) if len(free) else 2
    require(fewest >= 2, "batch", "two or more tokens that are neither triggers nor outputs", fewest)
    order = torch.from_numpy(rng.random(free.shape)).masked_fill(~free, -1).topk(2, dim=1).indices
    return present[order[:, 0]], present[order[:, 1]]


def _at(values: Int[Tensor, "batch pos"], position: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    return values.gather(1, position[:, None]).squeeze(1)


def _last(mask: Bool[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


def _random(mask: Bool[Tensor, "batch pos"], rng: np.random.Generator) -> Int[Tensor, " batch"]:
    return torch.from_numpy(rng.random(mask.shape)).masked_fill(~mask, -1).argmax(1)
