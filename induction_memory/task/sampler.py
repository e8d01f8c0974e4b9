"""Sampling the in-context bigram task, all sequences of a batch at once (Section 3; model in `bigrams.py`).

The triggers are drawn by exponential races: token i arrives at time E_i / pi_q(i) with E_i ~ Exp(1), and the first K
to arrive are K successive draws from pi_q without replacement. The chain then takes T steps. Each step is two look-ups
in the alias tables for the whole batch. The look-up of a trigger goes to a row that holds only its output.

All random numbers come from the `rng` argument in a fixed order: same generator state, same batch.

Walker's alias tables make one draw from any of many distributions by two look-ups. A distribution p over N outcomes is
cut into N columns of equal mass 1/N. Column c holds outcome c with probability accept[c] and another outcome, alias[c],
with the rest. With u uniform in [0, N), c = floor(u) and f = u - c,

    outcome = c if f < accept[c] else alias[c].

An outcome of probability zero has accept 0 and is the alias of no column: it is never drawn.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from induction_memory.errors import require
from induction_memory.fields import require_integer
from induction_memory.task.batch import Batch, require_tokens
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.protocol import Task, require_draw


@dataclass(frozen=True)
class AliasTable:
    """The tables of several distributions, flattened: row r has the entries `r * size + column`."""

    size: int
    """N, the number of outcomes."""
    accept: Float[np.ndarray, " entries"]
    """Probability that a column yields its own outcome."""
    alias: Int[np.ndarray, " entries"]
    """The outcome that it yields otherwise."""

    def draw(self, row: Int[np.ndarray, "*shape"], uniform: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
        """One outcome per entry of `row`, drawn from that row's distribution with a uniform number in [0, 1)."""
        scaled = uniform * self.size
        column = scaled.astype(np.int64)
        entry = row * self.size + column
        return np.where(scaled - column < self.accept[entry], column, self.alias[entry])


def alias_table(probabilities: Float[np.ndarray, "rows outcome"]) -> AliasTable:
    """One table per row of `probabilities` (Vose's algorithm). Never draw from a row of zeros."""
    rows, size = probabilities.shape
    accept = np.ones((rows, size))
    alias = np.tile(np.arange(size), (rows, 1))
    for row in range(rows):
        mass = probabilities[row] * size
        small = [i for i in range(size) if mass[i] < 1]
        large = [i for i in range(size) if mass[i] >= 1]
        while small and large:
            low, high = small.pop(), large[-1]
            accept[row, low], alias[row, low] = mass[low], high
            mass[high] -= 1 - mass[low]
            if mass[high] < 1:
                small.append(large.pop())
    return AliasTable(size, accept.ravel(), alias.ravel())


BLOCK = 32  # steps of the chain whose random numbers are drawn at once


@dataclass(frozen=True, eq=False)
class BigramBatch(Batch):
    """Sequences of the task: z_1..z_T as inputs, z_2..z_{T+1} as targets, with their triggers and outputs.

    Groups: `in_context` (second and later occurrences of a trigger: the target stands in the context), `global` (other
    tokens: the target is drawn from pi_b) and `first_occurrence` (a trigger seen for the first time: its output is not
    known).
    """

    @property
    def counts(self) -> Int64[Tensor, "batch pos"]:
        """n at the n-th occurrence of a trigger as input, 0 at tokens that are not triggers of their sequence."""
        return self.latents["counts"]

    @property
    def triggers(self) -> Int64[Tensor, "batch k"]:
        """q_1..q_K of each sequence, in the order drawn."""
        return self.latents["triggers"]

    @property
    def outputs(self) -> Int64[Tensor, "batch k"]:
        """o_1..o_K."""
        return self.latents["outputs"]

    @property
    def in_context(self) -> Bool[Tensor, "batch pos"]:
        """Second and later occurrences of a trigger: the target stands in the context."""
        return self.groups["in_context"]

    @property
    def global_(self) -> Bool[Tensor, "batch pos"]:
        """Tokens that are not triggers: the target is drawn from pi_b."""
        return self.groups["global"]

    @property
    def first_occurrence(self) -> Bool[Tensor, "batch pos"]:
        """A trigger seen for the first time: its output is not known yet."""
        return self.groups["first_occurrence"]


def with_counts(
    tokens: Int64[Tensor, "batch pos"],
    targets: Int64[Tensor, "batch pos"],
    counts: Int64[Tensor, "batch pos"],
    triggers: Int64[Tensor, "batch k"],
    outputs: Int64[Tensor, "batch k"],
) -> BigramBatch:
    """The batch of these sequences, its groups by the occurrence counts."""
    return BigramBatch(
        tokens,
        targets,
        counted=torch.ones_like(tokens, dtype=torch.bool),
        groups={"in_context": counts >= 2, "global": counts == 0, "first_occurrence": counts == 1},
        main="in_context",
        latents={"counts": counts, "triggers": triggers, "outputs": outputs},
    )


def step_rng(seed: int, step: int) -> np.random.Generator:
    """The generator of training step `step`: its own stream, independent of what was drawn at other steps.

    >>> step_rng(0, 5).integers(10, size=4)
    array([0, 2, 8, 8])
    """
    for field, value in (("seed", seed), ("step", step)):
        require_integer(int(value) if isinstance(value, np.integer) else value, field, 0, None)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(step,)))


@overload
def sample(task: BigramTask, sequences: int, rng: np.random.Generator) -> BigramBatch: ...
@overload
def sample(task: Task, sequences: int, rng: np.random.Generator) -> Batch: ...
def sample(task: Any, sequences: int, rng: np.random.Generator) -> Batch:
    """Draw `sequences` sequences of a task; in-context bigrams have T + 1 tokens each.

    >>> import induction_memory as im
    >>> batch = im.sample(im.BigramTask(k=2, length=8), 3, im.task.step_rng(0, 0))
    >>> batch.tokens.shape, batch.triggers.shape
    (torch.Size([3, 8]), torch.Size([3, 2]))
    """
    if not isinstance(task, BigramTask):
        require(isinstance(task, Task), "task", "a task", repr(task))
        return task.sample(sequences, rng)
    require_draw(sequences, task.length, rng, "sequences")
    chain, outputs_given_trigger = _alias_tables(task)
    if task.fixed_triggers is None:
        triggers = draw_triggers(task.trigger_probabilities, task.k, sequences, rng)
    else:
        triggers = np.tile(task.fixed_triggers, (sequences, 1))
    outputs = outputs_given_trigger.draw(triggers, rng.random((sequences, task.k)))
    first = rng.choice(task.vocab_size, size=sequences, p=task.unigram)
    tokens, is_trigger = _walk(chain, first, triggers, outputs, task.length, rng)
    return _assemble(tokens, is_trigger, triggers, outputs)


def make_batch(
    task: BigramTask,
    tokens: Int[Tensor | np.ndarray, "batch pos_plus_1"],
    triggers: Int[Tensor | np.ndarray, "batch k"],
    outputs: Int[Tensor | np.ndarray, "batch k"],
) -> BigramBatch:
    """A batch of these sequences, of any length, with these triggers and outputs.

    The sequences need not obey their triggers: a corrupted sequence is a batch too.

    >>> import torch
    >>> import induction_memory as im
    >>> tokens = torch.tensor([[1, 2, 3, 1, 2]])
    >>> one, two = torch.tensor([[1]]), torch.tensor([[2]])
    >>> batch = im.task.make_batch(im.BigramTask(k=1), tokens, triggers=one, outputs=two)
    >>> batch.in_context
    tensor([[False, False, False,  True]])
    """
    given = {"tokens": tokens, "triggers": triggers, "outputs": outputs}
    arrays = {name: torch.as_tensor(value).to(torch.int64).clone().numpy() for name, value in given.items()}
    require(arrays["tokens"].shape[1] >= 2, "tokens", "2 or more per sequence", arrays["tokens"].shape[1])
    require(len(triggers) == len(tokens), "triggers", f"one row per sequence ({len(tokens)})", len(triggers))
    require(outputs.shape == triggers.shape, "outputs", f"shape {tuple(triggers.shape)}", tuple(outputs.shape))
    for name, array in arrays.items():
        require_tokens(torch.from_numpy(array), task.vocab_size, name)
    is_trigger = (arrays["tokens"][:, :-1, None] == arrays["triggers"][:, None, :]).any(-1)
    return _assemble(arrays["tokens"], is_trigger, arrays["triggers"], arrays["outputs"])


def from_text(task: BigramTask, text: str) -> BigramBatch:
    """A batch of one sequence, the text: all but its last token as inputs, all but its first as targets.

    The text is split into tokens of the task's vocabulary (`corpus.py`). Its triggers are unknown: K = 0, and every
    position counts as global.

    >>> import induction_memory as im
    >>> batch = im.task.from_text(im.BigramTask(), "to be")
    >>> batch.tokens.shape, bool(batch.in_context.any())
    (torch.Size([1, 4]), False)
    """
    tokens = task.tables.encode(text)
    require(len(tokens) >= 2, "text", "2 or more tokens (an input and a target)", repr(text))
    none = np.zeros((1, 0), dtype=np.int64)
    return make_batch(task, tokens[None], none, none)


def draw_triggers(
    probabilities: Float[np.ndarray, " vocab"], k: int, batch: int, rng: np.random.Generator
) -> Int[np.ndarray, "batch k"]:
    """K distinct tokens per sequence, drawn without replacement, in the order of the draws."""
    possible = np.flatnonzero(probabilities > 0)
    arrival = rng.standard_exponential((batch, possible.size)) / probabilities[possible]
    return possible[torch.from_numpy(arrival).topk(k, largest=False).indices.numpy()]


def occurrence_counts(
    tokens: Int[np.ndarray, "batch pos"], is_trigger: Bool[np.ndarray, "batch pos"]
) -> Int[np.ndarray, "batch pos"]:
    """n at the n-th occurrence of a trigger in its sequence, 0 where `is_trigger` is false.

    A stable sort of the trigger positions by token puts the occurrences of each trigger in a sequence side by side, in
    order.
    """
    places = np.flatnonzero(is_trigger)
    token = tokens.ravel()[places]
    order = np.argsort(token.astype(np.uint16), kind="stable")  # 16 bits hold any N x N vocabulary; radix sort
    places, token = places[order], token[order]
    sequence = places // tokens.shape[1]
    rank = np.arange(places.size)
    begins = np.ones(places.size, dtype=bool)
    begins[1:] = (token[1:] != token[:-1]) | (sequence[1:] != sequence[:-1])
    counts = np.zeros(tokens.shape, dtype=np.int64)
    counts.ravel()[places] = rank - np.maximum.accumulate(np.where(begins, rank, 0)) + 1
    return counts


@lru_cache(maxsize=32)
def _alias_tables(task: BigramTask) -> tuple[AliasTable, AliasTable]:
    """The table of the chain, with an extra row N + o for each output o that yields only o, and the table of pi_o."""
    n = task.vocab_size
    return alias_table(np.concatenate([task.bigram, np.eye(n)])), alias_table(task.output_probabilities)


def _walk(
    chain: AliasTable,
    first: Int[np.ndarray, " batch"],
    triggers: Int[np.ndarray, "batch k"],
    outputs: Int[np.ndarray, "batch k"],
    length: int,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "batch pos_plus_1"], Bool[np.ndarray, "batch pos"]]:
    """T steps of every chain: its T + 1 tokens, and which of the first T are triggers.

    At this size a step's time is spent in function calls and memory allocation. So uniform numbers are drawn for a
    block of steps at a time into reused memory, and each step makes eight calls on one row of them.
    """
    n, batch = chain.size, first.size
    slot = np.arange(batch) * n
    row_start = np.tile(np.arange(n) * n, batch)
    row_start[slot[:, None] + triggers] = (n + outputs) * n

    # Eight unused columns keep the stride off powers of two, which makes the transpose three times as fast.
    tokens = np.empty((length + 1, batch + 8), dtype=np.int64)[:, :batch]
    is_trigger = np.empty((length, batch + 8), dtype=bool)[:, :batch]
    tokens[0] = first
    fractions, columns = np.empty((BLOCK, batch)), np.empty((BLOCK, batch), dtype=np.int64)
    here, entry, accept, own = np.empty_like(slot), np.empty_like(slot), np.empty(batch), np.empty(batch, dtype=bool)
    for start in range(0, length, BLOCK):
        steps = min(BLOCK, length - start)
        u, c = fractions[:steps], columns[:steps]
        rng.random(out=u)
        u *= n
        np.copyto(c, u, casting="unsafe")
        u -= c
        for fraction, column, now, after, special in zip(
            u, c, tokens[start:], tokens[start + 1 :], is_trigger[start:], strict=False
        ):
            np.add(slot, now, out=here)
            row_start.take(here, out=entry, mode="clip")
            np.greater_equal(entry, n * n, out=special)
            np.add(entry, column, out=entry)
            chain.accept.take(entry, out=accept, mode="clip")
            chain.alias.take(entry, out=after, mode="clip")
            np.less(fraction, accept, out=own)
            np.putmask(after, own, column)
    return tokens.T, is_trigger.T


def _assemble(
    tokens: Int[np.ndarray, "batch pos_plus_1"],
    is_trigger: Bool[np.ndarray, "batch pos"],
    triggers: Int[np.ndarray, "batch k"],
    outputs: Int[np.ndarray, "batch k"],
) -> BigramBatch:
    inputs = np.ascontiguousarray(tokens[:, :-1])
    return with_counts(
        tokens=torch.from_numpy(inputs),
        targets=torch.from_numpy(np.ascontiguousarray(tokens[:, 1:])),
        counts=torch.from_numpy(occurrence_counts(inputs, np.ascontiguousarray(is_trigger))),
        triggers=torch.from_numpy(triggers),
        outputs=torch.from_numpy(outputs),
    )
