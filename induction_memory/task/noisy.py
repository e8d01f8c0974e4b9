"""In-context bigrams with noisy triggers (Chen, Bruna & Bietti 2025, "Distributional associations vs in-context
reasoning").

As in the in-context bigram task, each sequence has K triggers q_k with outputs o_k ~ pi_o( . | q_k). After a trigger
the output is replaced by a noise token tau with probability p:

    p(z_{t+1} = j | z_t = i) = (1 - p) 1{j = o_k} + p 1{j = tau} if i = q_k,    pi_u(j) if i = tau,    pi_b(j | i) else.

The noise token is the last of the vocabulary. It occurs only after triggers, and after it the chain starts again from
pi_u. That tau follows a trigger is an association of the training distribution; the output can only be read from the
context. The variant `clean` (p = 0) shows which of the two a part of a model serves. Choose p below 0.5: at 0.5 noise
and output are equally likely and accuracy means nothing.

`bayes` is the optimal predictor. With P_t(i) the posterior probability that i = z_t is a trigger of the sequence,

    p(z_{t+1} = j | z_1..z_t) = P_t(i) [ p 1{j = tau} + (1 - p) p_o(j) ] + (1 - P_t(i)) pi_b(j | i),

where p_o is the token other than tau that followed i before, and pi_o( . | i) if there was none. The evidence on a
token i is the list of its successors s_1, s_2, ... up to z_t. If i is a trigger, each tau among them has likelihood p,
the first other successor s has (1 - p) pi_o(s | i), and each later one has (1 - p) if it equals s and 0 otherwise.
Fixed triggers are known in advance, so P_t(i) is always one or zero.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import check_fields
from induction_memory.task.batch import Batch, require_tokens
from induction_memory.task.bayes import inclusion, marginal, require_possible, trigger_posterior
from induction_memory.task.bigrams import BigramTask, OutputDistribution, TriggerChoice, TriggerDistribution
from induction_memory.task.corruptions import Pairs, at, strangers, with_queries
from induction_memory.task.ideals import after_same_context, feed_forward, induction_head, previous
from induction_memory.task.protocol import Ideal, Predictor, read_only, register, require_draw
from induction_memory.task.sampler import AliasTable, alias_table, draw_triggers

NOISE_LABEL = "τ"


@register
@field_docs
@dataclass(frozen=True)
class NoisyTriggers:
    """In-context bigrams in which a noise token sometimes replaces a trigger's output.

    >>> import induction_memory as im
    >>> task = im.task.NoisyTriggers(noise=0.5, length=32)
    >>> task.n_inputs, list(task.variants())
    (66, ['clean'])
    """

    name: ClassVar[str] = "noisy-triggers"
    main: ClassVar[str] = "in_context"
    groups: ClassVar[tuple[str, ...]] = ("in_context", "global", "first")

    corpus: str = "tinyshakespeare"
    """A shipped corpus: the tables pi_u and pi_b."""
    length: int = 64
    """T, the number of input tokens."""
    k: int = 5
    """K, the number of triggers of a sequence."""
    triggers: TriggerChoice = "fixed"
    """`fixed`: the K most frequent tokens. `random`: drawn anew for each sequence."""
    trigger_distribution: TriggerDistribution = "unigram"
    """pi_q of random triggers."""
    outputs: OutputDistribution = "uniform"
    """pi_o: uniform over the corpus's tokens, or pi_b( . | trigger)."""
    noise: float = 0.3
    """p, the probability that the noise token replaces the output."""

    def __post_init__(self) -> None:
        check_fields(self, "task", length=(2, None, "tokens"), noise=(0, 1))
        require(self.noise < 1, "task.noise", "below 1", self.noise)
        assert self.bigrams.k == self.k

    @cached_property
    def bigrams(self) -> BigramTask:
        """The bigram task without noise, with its tables of triggers, outputs and global bigrams."""
        return BigramTask(
            corpus=self.corpus,
            length=self.length,
            k=self.k,
            triggers=self.triggers,
            trigger_distribution=self.trigger_distribution,
            outputs=self.outputs,
        )

    @property
    def noise_token(self) -> int:
        """tau, the id after the corpus's last."""
        return self.bigrams.vocab_size

    @property
    def n_inputs(self) -> int:
        return self.bigrams.vocab_size + 1

    n_outputs = n_inputs

    @property
    def fixed_triggers(self) -> Int[np.ndarray, " k"] | None:
        """The ids of the fixed triggers; None when they are random."""
        return self.bigrams.fixed_triggers

    @cached_property
    def bigram(self) -> Float[np.ndarray, "token next"]:
        """The next token from the current one alone: pi_b, and pi_u after the noise token.

        The row of a fixed trigger is the noise token with probability p and pi_o with probability 1 - p.
        """
        n, tau = self.n_inputs, self.noise_token
        table = np.zeros((n, n))
        table[:tau, :tau], table[tau, :tau] = self.bigrams.bigram, self.bigrams.unigram
        if self.fixed_triggers is not None:
            table[self.fixed_triggers, :tau] = (1 - self.noise) * self.bigrams.output_probabilities[self.fixed_triggers]
            table[self.fixed_triggers, tau] = self.noise
        return read_only(table)

    def sample(self, n: int, rng: np.random.Generator) -> Batch:
        """Draw `n` sequences.

        Groups: `in_context` (a trigger whose output has been seen), `first` (a trigger whose output has not) and
        `global` (no trigger; the noise token included).
        """
        require_draw(n, self.length, rng)
        base, tau = self.bigrams, self.noise_token
        chain, outputs_given_trigger = _tables(base)
        if base.fixed_triggers is None:
            triggers = draw_triggers(base.trigger_probabilities, base.k, n, rng)
        else:
            triggers = np.tile(base.fixed_triggers, (n, 1))
        outputs = outputs_given_trigger.draw(triggers, rng.random((n, base.k)))
        output_of = np.full((n, tau + 1), -1)
        np.put_along_axis(output_of, triggers, outputs, axis=1)

        tokens = np.empty((self.length + 1, n), dtype=np.int64)
        tokens[0] = rng.choice(base.vocab_size, size=n, p=base.unigram)
        here = np.arange(n)
        for t in range(self.length):
            uniform = rng.random((2, n))
            output = output_of[here, tokens[t]]
            after_trigger = np.where(uniform[1] < self.noise, tau, output)
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
            main=self.main,
            latents={"triggers": torch.from_numpy(triggers), "outputs": torch.from_numpy(outputs)},
        )

    def about(self) -> str:
        return f"{self.bigrams.about()}, noise {self.noise:g}"

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        both = (*self.bigrams.vocabulary, NOISE_LABEL)
        return both, both

    def predictors(self) -> dict[str, Predictor]:
        """`unigram`, `distribution only` (knows triggers and noise, ignores the context) and `bayes`."""
        chain = distribution_only(self)
        first = torch.zeros(self.n_inputs, dtype=torch.float64)
        first[:-1] = torch.from_numpy(np.array(self.bigrams.unigram))
        unigram = marginal(first, chain, self.length)
        return {
            "unigram": lambda tokens: unigram.expand(*tokens.shape, -1),
            "distribution only": lambda tokens: chain[tokens],
            "bayes": lambda tokens: bayes(self, tokens),
        }

    def sources(self, batch: Batch) -> dict[str, Tensor]:
        """`previous`; `induction`: outputs after earlier occurrences of the query's token; `noise`: tau after them."""
        tokens, tau = batch.tokens, self.noise_token
        return {
            "previous": previous(tokens),
            "induction": after_token(tokens, tau),
            "noise": after_same_context(tokens) & (tokens == tau)[:, None, :],
        }

    def associations(self) -> dict[str, Ideal]:
        """The memories of the paper's construction; the feed-forward stores `bigram`."""
        matched = np.append(self.bigrams.trigger_probabilities > 0, False)
        attention = induction_head(self.length, self.n_inputs, matched=matched, ask_all=True)
        return attention | {"W_F": feed_forward(self.bigram)}

    def variants(self) -> dict[str, "NoisyTriggers"]:
        """`clean`: this task without noise; a task that has none has no variants."""
        return {"clean": replace(self, noise=0.0)} if self.noise > 0 else {}

    def corruptions(self) -> dict[str, Callable[[Batch, np.random.Generator], Pairs]]:
        """`output`: another output after every earlier occurrence of the query's trigger."""

        return {"output": self.other_output}

    def other_output(self, batch: Batch, rng: np.random.Generator) -> Pairs:
        """Another output after every earlier occurrence of the query's trigger; noise stays where it was.

        The query is a random trigger whose output has been seen and is its target.
        """
        tau, place = self.noise_token, output_place(batch.tokens, self.noise_token)
        seen = batch.tokens.gather(1, place.clamp(min=0))
        possible = batch.group("in_context") & (batch.targets == seen) & (batch.targets != batch.tokens)
        batch, query = with_queries(batch, possible, "a trigger comes again, its output after it", rng)
        changed = after_token(batch.tokens, tau)[torch.arange(len(batch)), query]
        other = strangers(batch, rng, barred=tau)[1]
        first = changed.int().argmax(1)
        corrupted = replace(batch, tokens=torch.where(changed, other[:, None], batch.tokens))
        return Pairs(batch, corrupted, query, at(batch.targets, query), other, {"trigger": first - 1, "output": first})


@lru_cache(maxsize=8)
def _tables(base: Any) -> tuple[AliasTable, AliasTable]:
    """The table of the chain, with pi_u as the row of the noise token, and the table of pi_o."""
    return alias_table(np.concatenate([base.bigram, base.unigram[None]])), alias_table(base.output_probabilities)


def after_token(tokens: Int[Tensor, "batch pos"], tau: int) -> Bool[Tensor, "batch query key"]:
    """Keys that follow an earlier occurrence of the query's token and are not the noise token."""
    return after_same_context(tokens) & (tokens != tau)[:, None, :]


def output_place(tokens: Int[Tensor, "batch pos"], tau: int) -> Int[Tensor, "batch pos"]:
    """The first key of `after_token`; -1 if there is none."""
    places = after_token(tokens, tau)
    return torch.where(places.any(-1), places.int().argmax(-1), -1)


def distribution_only(task: Any) -> Float[Tensor, "vocab vocab"]:
    """The next token from the current one alone."""
    trigger, other = conditionals(task)
    p = torch.zeros(task.n_inputs, 1, dtype=torch.float64)
    p[:-1, 0] = inclusion(task.bigrams)
    return p * trigger + (1 - p) * other


def conditionals(task: Any) -> tuple[Float[Tensor, "vocab vocab"], Float[Tensor, "vocab vocab"]]:
    """The next token after a trigger of unknown output, and after any other token; row = current token."""
    base, tau, n = task.bigrams, task.noise_token, task.n_inputs
    trigger, other = (torch.zeros(n, n, dtype=torch.float64) for _ in range(2))
    trigger[:tau, :tau] = (1 - task.noise) * torch.from_numpy(np.array(base.output_probabilities))
    trigger[:tau, tau] = task.noise
    other[:tau, :tau] = torch.from_numpy(np.array(base.bigram))
    other[tau, :tau] = torch.from_numpy(np.array(base.unigram))
    return trigger, other


def bayes(task: Any, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
    """The optimal prediction of the next token after every prefix of every sequence."""
    n, tau = task.n_inputs, task.noise_token
    require_tokens(tokens, n)
    trigger, other = conditionals(task)
    place = output_place(tokens, tau)
    known = torch.where(place >= 0, tokens.gather(1, place.clamp(min=0)), -1)
    repeat = (1 - task.noise) * torch.nn.functional.one_hot(known.clamp(min=0), n).to(torch.float64)
    repeat[..., tau] += task.noise
    given_trigger = torch.where((known >= 0).unsqueeze(-1), repeat, trigger[tokens])
    p = posterior(task, tokens, known).unsqueeze(-1)
    return p * given_trigger + (1 - p) * other[tokens]


def posterior(
    task: Any, tokens: Int[Tensor, "batch pos"], known: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos"]:
    """P_t(z_t). `known` is the output seen so far after each token, -1 if there was none."""
    n, tau = task.n_inputs, task.noise_token
    pi_q = torch.zeros(n, dtype=torch.float64)
    pi_q[:tau] = torch.from_numpy(np.array(task.bigrams.trigger_probabilities))
    if task.bigrams.fixed_triggers is not None:
        return (pi_q > 0).to(torch.float64)[tokens]
    trigger, other = conditionals(task)
    now, after, before = tokens[:, :-1], tokens[:, 1:], known[:, :-1]
    repeated = (1 - task.noise) * (after == before).to(torch.float64)
    if_trigger = torch.where((before < 0) | (after == tau), trigger[now, after], repeated)
    sums = []
    for likelihood in (if_trigger, other[now, after]):
        steps = torch.zeros(*tokens.shape, n, dtype=torch.float64)
        steps[:, 1:].scatter_(2, now.unsqueeze(-1), likelihood.log().unsqueeze(-1))
        sums.append(steps.cumsum(1))
    found = trigger_posterior(tokens, pi_q, task.k, *sums)
    require_possible(found)
    return found
