"""Sequences with one thing changed: how does the model react to this change?

At a query t, a trigger q seen before, the output o stands after each earlier occurrence s < t (z_s = q, z_{s+1} = o):

    output    z_{s+1} becomes another token: the right answer at the query changes with it
    trigger   z_s becomes another token: nothing before the query matches it any more
    first     the trigger and the output of the first occurrence are both replaced; later occurrences stay

In sequences without triggers (raw tokens), a query is any position whose token q and next token o have occurred side by
side before. Only the earlier occurrences of q followed by o count.

Replacements are drawn from tokens that are neither triggers nor outputs of their sequence, and differ from the token
that they replace. The query and everything after it stay as they were. A trigger that is its own output is not used as
a query.

`Pairs` hold the clean and the corrupted sequences. Only the tokens change: the corrupted batch has the targets, groups
and latents of the clean one. A predictor reads only tokens, so it gives the right prediction for the corrupted
sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from induction_memory.errors import InputError, require, require_known
from induction_memory.field_docs import field_docs
from induction_memory.task.batch import Batch, Kind
from induction_memory.task.protocol import Task, ask, choose
from induction_memory.task.sampler import BigramBatch


@field_docs
@dataclass(frozen=True, eq=False)
class Pairs:
    """Clean sequences, their corrupted twins, and the positions of queries and answers."""

    clean: Batch
    corrupted: Batch
    query: Int[Tensor, " batch"]
    """The position t of each sequence's query."""
    answer: Int[Tensor, " batch"] | None
    """The right output there; None where targets are soft, so that only the change in KL can be measured."""
    other: Int[Tensor, " batch"] | None
    """The right output of the corrupted sequence, or another output to compare with; None where targets are soft."""
    roles: Mapping[str, Int[Tensor, " batch"]] = field(default_factory=dict)
    """Named positions of each sequence besides the query, such as the position of the answer."""

    def to(self, device: torch.device | str) -> "Pairs":
        """The same pairs on a device."""
        answer, other = (None if ids is None else ids.to(device) for ids in (self.answer, self.other))
        roles = {name: place.to(device) for name, place in self.roles.items()}
        return Pairs(self.clean.to(device), self.corrupted.to(device), self.query.to(device), answer, other, roles)

    @property
    def right(self) -> Int[Tensor, " batch"]:
        """The right output at the query; refused if targets are soft."""
        if self.answer is None:
            raise InputError("pairs: expected sequences with one right output, got soft ones (measure a change of KL)")
        return self.answer


def at(values: Int[Tensor, "batch pos"], position: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The value at one position per sequence."""
    return values.gather(1, position[:, None]).squeeze(1)


def last_of(mask: Bool[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """The last position of the mask in each sequence."""
    return mask.shape[1] - 1 - mask.flip(1).int().argmax(1)


def random_of(mask: Bool[Tensor, "batch pos"], rng: np.random.Generator) -> Int[Tensor, " batch"]:
    """A random position of the mask in each sequence."""
    return torch.from_numpy(rng.random(mask.shape)).to(mask.device).masked_fill(~mask, -1).argmax(1)


def with_queries(
    batch: Kind, possible: Bool[Tensor, "batch pos"], what: str, rng: np.random.Generator | None = None
) -> tuple[Kind, Int[Tensor, " chosen"]]:
    """The sequences with a possible query, and one query in each: a random one, or the last without `rng`."""
    has_one = possible.any(1)
    require(bool(has_one.any()), "batch", f"at least one sequence in which {what}", "none")
    possible = possible[has_one]
    return batch[has_one], last_of(possible) if rng is None else random_of(possible, rng)


Corruption = Literal["output", "trigger", "first"]
Query = Literal["second", "last"]


def corrupt(batch: BigramBatch, corruption: Corruption, rng: np.random.Generator, *, query: Query = "second") -> Pairs:
    """The sequences that have a query, each with its corrupted twin.

    Each sequence has one query, chosen by `rng`: the second occurrence of a trigger, or the last in-context position.

    >>> import induction_memory as im
    >>> batch = im.BigramTask(k=2, length=32).sample(8, im.task.step_rng(0, 0))
    >>> pairs = im.task.corrupt(batch, "output", im.task.step_rng(0, 1))
    >>> bool((pairs.clean.tokens != pairs.corrupted.tokens).any())
    True
    """
    require_known(corruption, get_args(Corruption), "corruption")
    require_known(query, get_args(Query), "query")
    possible = batch.counts == 2 if query == "second" else batch.in_context
    possible = possible & (batch.targets != batch.tokens)
    batch, t = with_queries(
        batch, possible, "a trigger, or a pair of tokens, comes twice", None if query == "last" else rng
    )
    q, answer = at(batch.tokens, t), at(batch.targets, t)
    earlier = (batch.tokens == q[:, None]) & (torch.arange(batch.tokens.shape[1]) < t[:, None])
    if not batch.triggers.shape[1]:
        earlier &= batch.targets == answer[:, None]
        batch = replace(batch, latents={**batch.latents, "triggers": q[:, None], "outputs": answer[:, None]})
    first = earlier.int().argmax(1)
    after = torch.zeros_like(earlier)
    after[:, 1:] = earlier[:, :-1]
    new_trigger, new_output = strangers(batch, rng)
    tokens = batch.tokens.clone()
    here = torch.arange(len(tokens))
    if corruption == "output":
        tokens = torch.where(after, new_output[:, None], tokens)
    elif corruption == "trigger":
        tokens = torch.where(earlier, new_trigger[:, None], tokens)
    else:
        tokens[here, first], tokens[here, first + 1] = new_trigger, new_output
    roles = {"trigger": first, "output": first + 1}
    return Pairs(batch, replace(batch, tokens=tokens), t, answer, new_output, roles)


def pairs_of(
    task: Task | None, batch: Batch, corruption: str | None, rng: np.random.Generator, query: Query = "second"
) -> Pairs:
    """Clean and corrupted sequences by a corruption of the task, by default its first.

    Batches of the bigram task (they hold their triggers) and raw tokens need no `task`. Only these two kinds use
    `query`. Tasks compute on the CPU; the pairs are then moved to the device of the batch.
    """
    device = batch.tokens.device
    if device.type != "cpu":
        return pairs_of(task, batch.to("cpu"), corruption, rng, query).to(device)
    if isinstance(batch, BigramBatch):
        chosen: Any = "trigger" if corruption is None else corruption
        return corrupt(batch, chosen, rng, query=query)
    if task is None:
        raise InputError("task: expected the task of the sequences, which says how to corrupt them, got none")
    if corruption is None:
        corruption = next(iter(ask(task, "corruptions")))
    return choose(task, "corruptions", corruption)(batch, rng)


def other_outputs(batch: BigramBatch, rng: np.random.Generator) -> BigramBatch:
    """The same sequences with the output of every trigger changed, everywhere it follows its trigger."""
    previous = torch.full_like(batch.tokens, -1)
    previous[:, 1:] = batch.tokens[:, :-1]
    tokens = batch.tokens.clone()
    for column in range(batch.triggers.shape[1]):
        trigger, output = batch.triggers[:, column, None], batch.outputs[:, column, None]
        after = (previous == trigger) & (batch.tokens == output)
        tokens = torch.where(after, strangers(batch, rng)[1][:, None], tokens)
    return replace(batch, tokens=tokens)


def strangers(
    batch: Batch, rng: np.random.Generator, barred: int = -1
) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """Two different tokens per sequence that are neither triggers nor outputs there, drawn from the batch's tokens.

    The token `barred` is never drawn.
    """
    present = torch.cat([batch.tokens.flatten(), batch.targets.flatten()]).unique()
    present = present[present != barred]
    taken = torch.cat([batch.latents["triggers"], batch.latents["outputs"]], dim=1)
    free = (present[None, :, None] != taken[:, None, :]).all(-1)
    fewest = int(free.sum(1).min()) if len(free) else 2
    require(fewest >= 2, "batch", "two or more tokens that are neither triggers nor outputs", fewest)
    order = torch.from_numpy(rng.random(free.shape)).masked_fill(~free, -1).topk(2, dim=1).indices
    return present[order[:, 0]], present[order[:, 1]]
