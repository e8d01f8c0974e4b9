"""In-context bigrams with noisy triggers (Chen, Bruna & Bietti 2025, "Distributional associations vs in-context
reasoning").

As in the in-context bigram task, each sequence has K triggers q_k with outputs o_k ~ pi_o( . | q_k). After a trigger
the output is replaced by a noise token tau with probability p:

    p(z_{t+1} = j | z_t = i) = (1 - p) 1{j = o_k} + p 1{j = tau} if i = q_k,    pi_u(j) if i = tau,    pi_b(j | i) else.

The noise is a token of its own, the last of the vocabulary: nothing else leads to it, and after it the chain starts
again from pi_u. That a trigger is followed by tau is an association of the training distribution, while the output can
only be read from the context. The clean twin (p = 0) shows which of the two a part of a model serves. Choose p below
0.5: at 0.5 noise and output are equally likely and accuracy means nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float, Int

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.bigrams import BigramTask, OutputDistribution, TriggerChoice, TriggerDistribution
from induction_memory.task.fields import read_only, require_integer, require_number
from induction_memory.task.protocol import Ideal, Predictor
from induction_memory.task.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from induction_memory.task.batch import Batch
    from induction_memory.task.pairs import Pairs

NOISE_LABEL = "τ"


@register
@field_docs
@dataclass(frozen=True)
class NoisyTriggers:
    """In-context bigrams in which a noise token sometimes stands in the place of a trigger's output.

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
    """The K most frequent tokens, or drawn anew for each sequence."""
    trigger_distribution: TriggerDistribution = "unigram"
    """pi_q of random triggers."""
    outputs: OutputDistribution = "uniform"
    """pi_o: uniform over the corpus's tokens, or pi_b( . | trigger)."""
    noise: float = 0.3
    """p, the probability that the noise token stands in the output's place."""

    def __post_init__(self) -> None:
        require_integer(self.length, "task.length", 2, None, "tokens")
        require_number(self.noise, "task.noise", 0, 1)
        require(self.noise < 1, "task.noise", "below 1", self.noise)
        assert self.bigrams.k == self.k

    @cached_property
    def bigrams(self) -> BigramTask:
        """The task without noise: tables of triggers, outputs and global bigrams."""
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
        """tau, the id after those of the corpus."""
        return self.bigrams.vocab_size

    @property
    def n_inputs(self) -> int:
        return self.bigrams.vocab_size + 1

    @property
    def n_outputs(self) -> int:
        return self.n_inputs

    @property
    def fixed_triggers(self) -> Int[np.ndarray, " k"] | None:
        """The ids of the fixed triggers; None when they are random."""
        return self.bigrams.fixed_triggers

    @cached_property
    def bigram(self) -> Float[np.ndarray, "token next"]:
        """The next token given the current one alone: pi_b, and pi_u after the noise token.

        The row of a fixed trigger is the noise token with probability p and pi_o with probability 1 - p.
        """
        n, tau = self.n_inputs, self.noise_token
        table = np.zeros((n, n))
        table[:tau, :tau], table[tau, :tau] = self.bigrams.bigram, self.bigrams.unigram
        if self.fixed_triggers is not None:
            table[self.fixed_triggers, :tau] = (1 - self.noise) * self.bigrams.output_probabilities[self.fixed_triggers]
            table[self.fixed_triggers, tau] = self.noise
        return read_only(table)

    def sample(self, n: int, rng: np.random.Generator) -> "Batch":
        """Draw `n` sequences.

        Groups: `in_context` (a trigger whose output has been seen), `first` (a trigger whose output has not) and
        `global` (no trigger; the noise token included).
        """
        from induction_memory.task.noisy.sequences import sample

        return sample(self, n, rng)

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        both = (*self.bigrams.vocabulary, NOISE_LABEL)
        return both, both

    def predictors(self) -> dict[str, Predictor]:
        """`unigram`, `distribution only` (knows triggers and noise, ignores the context) and `bayes`."""
        from induction_memory.task.noisy.predictors import predictors

        return predictors(self)

    def sources(self, batch: "Batch") -> "dict[str, Tensor]":
        """`previous`; `induction`: outputs after earlier occurrences of the query's token; `noise`: tau after them."""
        from induction_memory.task.noisy.sequences import sources

        return sources(self, batch)

    def associations(self) -> dict[str, Ideal]:
        """The memories of the paper's construction; the feed-forward stores `bigram`."""
        from induction_memory.task.ideals import feed_forward, induction_head

        matched = np.append(self.bigrams.trigger_probabilities > 0, False)
        attention = induction_head(self.length, self.n_inputs, matched=matched, ask_all=True)
        return attention | {"W_F": feed_forward(self.bigram)}

    def variants(self) -> dict[str, "NoisyTriggers"]:
        """`clean`: the same without noise."""
        return {"clean": replace(self, noise=0.0)} if self.noise > 0 else {}

    def corruptions(self) -> "dict[str, Callable[[Batch, np.random.Generator], Pairs]]":
        """`output`: another output after every earlier occurrence of the query's trigger."""
        from induction_memory.task.noisy.sequences import other_output

        return {"output": partial(other_output, self)}
