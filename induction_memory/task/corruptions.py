"""Sequences with one thing changed, so that what a model does differently can be traced to it.

At a query t, a trigger q seen before, the output o stands after each earlier occurrence s < t (z_s = q, z_{s+1} = o):

    output    z_{s+1} becomes another token: the right answer at the query changes with it
    trigger   z_s becomes another token: nothing before the query matches it any more
    first     the first occurrence is removed, its trigger and its output both replaced; later ones stay

In sequences without triggers (raw tokens), a query is any position whose token q and next token o occurred next to each
other before. Only the earlier occurrences of q that o follows count.

Replacements are drawn from tokens that are neither triggers nor outputs of their sequence, and differ from the token
that they replace. The query and everything after it stay as they were. A trigger that is its own output is not used as
a query.
"""

from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from induction_memory.errors import InputError, require
from induction_memory.task.batch import Batch as AnyBatch
from induction_memory.task.pairs import Pairs, at, with_queries
from induction_memory.task.protocol import Task, ask, choose
from induction_memory.task.sampler import Batch

Corruption = Literal["output", "trigger", "first"]
Query = Literal["second", "last"]


def corrupt(batch: Batch, corruption: Corruption, rng: np.random.Generator, *, query: Query = "second") -> Pairs:
    """The sequences that have a query, each with its corrupted twin.

    The query is one occurrence in each sequence, chosen by `rng`: a trigger's second, or the last in-context position.

    >>> import induction_memory as im
    >>> batch = im.BigramTask(k=2, length=32).sample(8, im.step_rng(0, 0))
    >>> pairs = im.task.corrupt(batch, "output", im.step_rng(0, 1))
    >>> bool((pairs.clean.tokens != pairs.corrupted.tokens).any())
    True
    """
    known = get_args(Corruption)
    require(corruption in known, "corruption", f"one of {', '.join(known)}", repr(corruption))
    require(query in get_args(Query), "query", "second or last", repr(query))
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
    task: Task | None, batch: AnyBatch, corruption: str | None, rng: np.random.Generator, query: Query = "second"
) -> Pairs:
    """Clean and corrupted sequences by a corruption of the task, its first when not named.

    Sequences of the bigram task carry their triggers, so they need no `task`; nor do raw tokens. Only these two kinds
    use `query`. Tasks compute on the CPU; the pairs are then moved to the device of the batch.
    """
    device = batch.tokens.device
    if device.type != "cpu":
        return pairs_of(task, batch.to("cpu"), corruption, rng, query).to(device)
    if isinstance(batch, Batch):
        chosen: Any = "trigger" if corruption is None else corruption
        return corrupt(batch, chosen, rng, query=query)
    if task is None:
        raise InputError("task: expected the task of the sequences, which says how to corrupt them, got none")
    if corruption is None:
        corruption = next(iter(ask(task, "corruptions")))
    return choose(task, "corruptions", corruption)(batch, rng)


def other_outputs(batch: Batch, rng: np.random.Generator) -> Batch:
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
    batch: AnyBatch, rng: np.random.Generator, barred: int = -1
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
