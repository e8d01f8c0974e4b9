"""Sequences of the noisy triggers, all of a batch at once (model in `task.py`)."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from induction_memory.task.alias import AliasTable, alias_table
from induction_memory.task.batch import Batch
from induction_memory.task.corruptions import strangers
from induction_memory.task.fields import require_draw
from induction_memory.task.pairs import Pairs, at, with_queries
from induction_memory.task.positions import after_same_context, previous
from induction_memory.task.sampler import race


def sample(task: Any, n: int, rng: np.random.Generator) -> Batch:
    """Draw `n` sequences of T + 1 tokens: inputs z_1..z_T, targets z_2..z_{T+1}."""
    require_draw(n, task.length, rng)
    base, tau = task.bigrams, task.noise_token
    chain, outputs_given_trigger = _tables(base)
    if base.fixed_triggers is None:
        triggers = race(base.trigger_probabilities, base.k, n, rng)
    else:
        triggers = np.tile(base.fixed_triggers, (n, 1))
    outputs = outputs_given_trigger.draw(triggers, rng.random((n, base.k)))
    output_of = np.full((n, tau + 1), -1)
    np.put_along_axis(output_of, triggers, outputs, axis=1)

    tokens = np.empty((task.length + 1, n), dtype=np.int64)
    tokens[0] = rng.choice(base.vocab_size, size=n, p=base.unigram)
    here = np.arange(n)
    for t in range(task.length):
        uniform = rng.random((2, n))
        output = output_of[here, tokens[t]]
        after_trigger = np.where(uniform[1] < task.noise, tau, output)
        tokens[t + 1] = np.where(output < 0, chain.draw(tokens[t], uniform[0]), after_trigger)
    inputs = torch.from_numpy(np.ascontiguousarray(tokens[:-1].T))
    targets = torch.from_numpy(np.ascontiguousarray(tokens[1:].T))
    is_trigger = torch.from_numpy(output_of).gather(1, inputs) >= 0
    seen = output_place(inputs, tau) >= 0
    return Batch(
        inputs,
        targets,
        counted=torch.ones_like(is_trigger),
        groups={"in_context": is_trigger & seen, "global": ~is_trigger, "first": is_trigger & ~seen},
        main=task.main,
        latents={"triggers": torch.from_numpy(triggers), "outputs": torch.from_numpy(outputs)},
    )


@lru_cache(maxsize=8)
def _tables(base: Any) -> tuple[AliasTable, AliasTable]:
    """The table of the chain, with pi_u as the row of the noise token, and the table of pi_o."""
    return alias_table(np.concatenate([base.bigram, base.unigram[None]])), alias_table(base.output_probabilities)


def after_token(tokens: Int[Tensor, "batch pos"], tau: int) -> Bool[Tensor, "batch query key"]:
    """Keys that follow an earlier occurrence of the query's token and are not the noise token."""
    return after_same_context(tokens) & (tokens != tau)[:, None, :]


def output_place(tokens: Int[Tensor, "batch pos"], tau: int) -> Int[Tensor, "batch pos"]:
    """The first key of `after_token`; -1 where there is none."""
    places = after_token(tokens, tau)
    return torch.where(places.any(-1), places.int().argmax(-1), -1)


def sources(task: Any, batch: Batch) -> dict[str, Bool[Tensor, "batch query key"]]:
    """Keys by role."""
    tokens, tau = batch.tokens, task.noise_token
    return {
        "previous": previous(tokens),
        "induction": after_token(tokens, tau),
        "noise": after_same_context(tokens) & (tokens == tau)[:, None, :],
    }


def other_output(task: Any, batch: Batch, rng: np.random.Generator) -> Pairs:
    """Another output after every earlier occurrence of the query's trigger; noise stays where it was.

    The query is a random trigger whose output has been seen and is its target.
    """
    tau, place = task.noise_token, output_place(batch.tokens, task.noise_token)
    seen = batch.tokens.gather(1, place.clamp(min=0))
    possible = batch.group("in_context") & (batch.targets == seen) & (batch.targets != batch.tokens)
    batch, query = with_queries(batch, possible, "a trigger comes again, its output after it", rng)
    changed = after_token(batch.tokens, tau)[torch.arange(len(batch)), query]
    other = strangers(batch, rng, barred=tau)[1]
    first = changed.int().argmax(1)
    corrupted = replace(batch, tokens=torch.where(changed, other[:, None], batch.tokens))
    return Pairs(batch, corrupted, query, at(batch.targets, query), other, {"trigger": first - 1, "output": first})
