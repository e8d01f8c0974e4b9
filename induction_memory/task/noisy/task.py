"""In-context bigrams with noisy triggers (Chen, Bruna & Bietti 2025, "Distributional associations vs in-context
reasoning").

As in the in-context bigram task, each sequence has K triggers q_k with outputs o_k ~ pi_o( . | q_k). After a trigger
the output is replaced by a noise token tau with probability p:

    p(z_{t+1} = j | z_t = i) = (1 - p) 1{j = o_k} + p 1{j = tau} if i = q_k,    pi_u(j) if i = tau,    pi_b(j | i) else.

The noise is a token of its own, the last of the vocabulary: nothing else leads to it, and after it the chain starts
again from pi_u. That a trigger is followed by tau is an association of the training distribution; the output can only
be read from the context. The clean twin (p = 0) tells which of the two a part of a model serves. At p = 0.5 noise and
output are equally likely and accuracy means nothing: choose p below.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.bigrams import BigramTask, OutputDistribution, TriggerChoice, TriggerDistribution
from induction_memory.task.fields import require_integer, require_number
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
    """The choices that define the task, checked when made."""

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
        """The memories of the paper's construction, and what the feed-forward would store: pi_b, and the noise."""
        n, T = self.n_inputs, self.length
        next_token = np.zeros((n, n))
        next_token[:-1, :-1] = self.bigrams.bigram.T
        next_token[:-1, -1] = self.bigrams.unigram
        if self.bigrams.fixed_triggers is not None:
            next_token[:, self.bigrams.fixed_triggers] = 0
            next_token[-1, self.bigrams.fixed_triggers] = self.noise
        return {
            "W_K1": Ideal("position", "position", np.eye(T, k=-1), "each position stores the one before it"),
            "W_K2": Ideal("token", "token", np.eye(n), "each token, remapped by layer 1, stores itself"),
            "W_O2": Ideal("token", "token", np.eye(n), "each value stores its own token as output"),
            "W_F": Ideal("token", "token", next_token, "likely successors; of fixed triggers the noise token"),
        }

    def variants(self) -> dict[str, "NoisyTriggers"]:
        """`clean`: the same without noise."""
        return {"clean": replace(self, noise=0.0)} if self.noise > 0 else {}

    def corruptions(self) -> "dict[str, Callable[[Batch, np.random.Generator], Pairs]]":
        """`output`: another output after every earlier occurrence of the query's trigger."""
        from induction_memory.task.noisy.sequences import other_output

        return {"output": partial(other_output, self)}
