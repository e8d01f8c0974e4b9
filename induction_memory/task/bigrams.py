"""The in-context bigram task (Section 3).

Each sequence has K triggers q_1..q_K, fixed or drawn from pi_q without replacement, with outputs o_k ~ pi_o( . | q_k).
Its first token is drawn from pi_u, and then

    p(z_{t+1} = j | z_t = i) = 1{j = o_k} if i = q_k,    pi_b(j | i) if i is not a trigger of the sequence.

`BigramTask` holds the choices; the tables pi_u, pi_b, pi_q and pi_o follow from them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from induction_memory.errors import InputError, require
from induction_memory.field_docs import field_docs
from induction_memory.fields import as_plain, check_fields, from_plain, require_integer
from induction_memory.task.corpus import SHIPPED, Corpus, load_corpus
from induction_memory.task.protocol import Ideal, Predictor, read_only, register

if TYPE_CHECKING:
    from torch import Tensor

    from induction_memory.task.corruptions import Pairs
    from induction_memory.task.sampler import BigramBatch

TriggerChoice = Literal["random", "fixed"]
TriggerDistribution = Literal["unigram", "uniform"]
OutputDistribution = Literal["uniform", "bigram"]
OutputPart = Literal["all", "train", "test"]
MOST_LENGTH = 1_000_000
SUM_TOLERANCE = 1e-6  # how far a user's probabilities may be from summing to one; within it they are rescaled


@register
@field_docs
@dataclass(frozen=True)
class BigramTask:
    """In-context bigrams, the paper's task: each sequence has triggers that are always followed by the same output.

    >>> BigramTask(k=2, length=32, triggers="fixed").vocab_size
    65
    """

    name: ClassVar[str] = "bigrams"
    main: ClassVar[str] = "in_context"
    groups: ClassVar[tuple[str, ...]] = ("in_context", "global", "first_occurrence")

    corpus: str | Corpus = "tinyshakespeare"
    """A shipped corpus, the path of a text file (read now, stored as counts), or a Corpus."""
    length: int = 256
    """T, the number of input tokens; a sequence has T + 1."""
    k: int = 5
    """K, the number of triggers of a sequence."""
    triggers: TriggerChoice = "random"
    """`random`: drawn anew for each sequence from pi_q without replacement. `fixed`: the same for all sequences."""
    trigger_distribution: TriggerDistribution | tuple[float, ...] = "unigram"
    """pi_q of random triggers: pi_u, uniform, or one probability per token."""
    trigger_offset: int = 0
    """Fixed triggers are the K most frequent tokens after skipping this many (ties: the earlier token first)."""
    trigger_characters: tuple[str, ...] | None = None
    """Fixed triggers by name instead."""
    outputs: OutputDistribution | tuple[float, ...] | tuple[tuple[float, ...], ...] = "uniform"
    """pi_o: uniform, pi_b( . | trigger), one probability per token, or one row of them per trigger token."""
    outputs_differ: bool = False
    """Never draw the trigger itself as its output."""
    output_part: OutputPart = "all"
    """Draw outputs from this part of the vocabulary only."""
    output_train_fraction: float = 0.5
    """Share of the vocabulary in the train part; the rest is the test part."""
    output_split_seed: int = 0
    """Which random split into train and test part."""

    def __post_init__(self) -> None:
        if not isinstance(self.corpus, Corpus) and self.corpus not in SHIPPED:
            object.__setattr__(self, "corpus", load_corpus(self.corpus, "task.corpus"))
        if isinstance(self.trigger_characters, str):
            object.__setattr__(self, "trigger_characters", tuple(self.trigger_characters))
        n = self.vocab_size
        check_fields(
            self,
            "task",
            length=(1, MOST_LENGTH, "tokens"),
            k=(1, n, "triggers (the vocabulary)"),
            output_split_seed=(0, None),
        )
        fraction = self.output_train_fraction
        require(0 < fraction < 1, "task.output_train_fraction", "a number between 0 and 1", fraction)
        self._check_triggers(n)
        self._check_outputs(n)

    def _check_triggers(self, n: int) -> None:
        if not isinstance(self.trigger_distribution, str):
            require_probabilities(self.trigger_distribution, "task.trigger_distribution", (n,))
        require_integer(self.trigger_offset, "task.trigger_offset", 0, n - self.k, "(the vocabulary less task.k)")
        if self.triggers == "random":
            for name in ("trigger_offset", "trigger_characters"):
                value = getattr(self, name)
                require(not value, f"task.{name}", "none with random triggers (task.triggers)", repr(value))
            positive = int((self.trigger_probabilities > 0).sum())
            enough = f"at least {self.k} tokens of positive probability (task.k)"
            require(positive >= self.k, "task.trigger_distribution", enough, positive)
            return
        given = self.trigger_distribution
        allowed = "the default 'unigram' with fixed triggers (task.triggers)"
        require(given == "unigram", "task.trigger_distribution", allowed, repr(given))
        characters = self.trigger_characters
        if characters is None:
            return
        require(self.trigger_offset == 0, "task.trigger_offset", "0 with trigger_characters", self.trigger_offset)
        self.tables.encode([*characters], "task.trigger_characters")
        expected = f"{self.k} different ones (task.k)"
        require(len(set(characters)) == len(characters) == self.k, "task.trigger_characters", expected, characters)

    def _check_outputs(self, n: int) -> None:
        if not isinstance(self.outputs, str):
            nested = any(isinstance(row, tuple) for row in self.outputs)
            require_probabilities(self.outputs, "task.outputs", (n, n) if nested else (n,))
        if self.output_part == "all" and not self.outputs_differ:
            return  # every trigger keeps its outputs
        parted = self.output_part == "all" or bool(0 < self._train_part.sum() < n)
        allowed = f"a share of the {n} tokens that leaves some to both parts"
        require(parted, "task.output_train_fraction", allowed, self.output_train_fraction)
        for i in np.flatnonzero((self.trigger_probabilities > 0) & (self.output_probabilities.sum(1) == 0)):
            restricted = [f"task.output_part={self.output_part!r}"] if self.output_part != "all" else []
            restricted += ["task.outputs_differ"] if self.outputs_differ else []
            raise InputError(
                f"task.outputs: expected some output for every possible trigger, got none for "
                f"{self.vocabulary[i]!r} under {' and '.join(restricted)}"
            )

    @cached_property
    def tables(self) -> Corpus:
        """The corpus itself: vocabulary, counts, encode and decode."""
        return self.corpus if isinstance(self.corpus, Corpus) else load_corpus(self.corpus, "task.corpus")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The tokens in the order of their ids."""
        return self.tables.vocabulary

    @property
    def vocab_size(self) -> int:
        """N, the number of tokens; inputs and outputs have the same vocabulary."""
        return len(self.tables.vocabulary)

    n_inputs = n_outputs = vocab_size

    @property
    def unigram(self) -> Float[np.ndarray, " vocab"]:
        """pi_u."""
        return self.tables.unigram

    @property
    def bigram(self) -> Float[np.ndarray, "vocab vocab"]:
        """pi_b, row = current token."""
        return self.tables.bigram

    @cached_property
    def fixed_triggers(self) -> Int[np.ndarray, " k"] | None:
        """Q, the ids of the fixed triggers; None when they are random."""
        if self.triggers == "random":
            return None
        if self.trigger_characters is not None:
            return read_only(self.tables.encode([*self.trigger_characters], "task.trigger_characters"))
        by_frequency = np.argsort(-self.tables.unigram_counts, kind="stable")
        return read_only(by_frequency[self.trigger_offset : self.trigger_offset + self.k])

    @cached_property
    def trigger_probabilities(self) -> Float[np.ndarray, " vocab"]:
        """pi_q. For fixed triggers it is uniform on Q: K draws without replacement then give exactly Q."""
        n = self.vocab_size
        if self.fixed_triggers is not None:
            pi_q = np.zeros(n)
            pi_q[self.fixed_triggers] = 1 / self.k
            return read_only(pi_q)
        if self.trigger_distribution == "unigram":
            return self.tables.unigram
        if self.trigger_distribution == "uniform":
            return read_only(np.full(n, 1 / n))
        pi_q = np.array(self.trigger_distribution, dtype=np.float64)
        return read_only(pi_q / pi_q.sum())

    @cached_property
    def output_probabilities(self) -> Float[np.ndarray, "vocab vocab"]:
        """pi_o, row = trigger, after `outputs_differ` and `output_part`, each row scaled to sum to one.

        If these two settings exclude all outputs of a token that is never a trigger (pi_q = 0), its row is zero.
        """
        n = self.vocab_size
        if self.outputs == "uniform":
            pi_o = np.full((n, n), 1 / n)
        elif self.outputs == "bigram":
            pi_o = self.bigram.copy()
        else:
            pi_o = np.broadcast_to(np.array(self.outputs, dtype=np.float64), (n, n)).copy()
        if self.outputs_differ:
            np.fill_diagonal(pi_o, 0)
        pi_o[:, ~self.output_tokens] = 0
        totals = pi_o.sum(1, keepdims=True)
        return read_only(pi_o / np.where(totals > 0, totals, 1))

    @property
    def output_tokens(self) -> Bool[np.ndarray, " vocab"]:
        """Which tokens may be outputs under `output_part`."""
        if self.output_part == "all":
            return np.ones(self.vocab_size, dtype=bool)
        return self._train_part if self.output_part == "train" else ~self._train_part

    @property
    def _train_part(self) -> np.ndarray:
        order = np.random.default_rng(self.output_split_seed).permutation(self.vocab_size)
        part = np.zeros(self.vocab_size, dtype=bool)
        part[order[: round(self.output_train_fraction * self.vocab_size)]] = True
        return part

    def sample(self, n: int, rng: np.random.Generator) -> "BigramBatch":
        """Draw `n` sequences (`sampler.py`)."""
        from induction_memory.task.sampler import sample

        return sample(self, n, rng)

    def about(self) -> str:
        triggers = "triggers drawn anew for each sequence" if self.fixed_triggers is None else "fixed triggers"
        return f"sequences of {self.length} tokens, {self.k} {triggers}"

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names = self.tables.vocabulary
        return names, names

    def predictors(self) -> dict[str, Predictor]:
        """`unigram`, `in-weights` and `bayes` (`bayes.py`)."""
        from induction_memory.task.bayes import predictors

        return predictors(self)

    def sources(self, batch: "BigramBatch") -> "dict[str, Tensor]":
        """`previous`: the position before. `induction`: positions after earlier occurrences of the query's token."""
        from induction_memory.task.ideals import after_same_context, previous

        return {"previous": previous(batch.tokens), "induction": after_same_context(batch.tokens)}

    def associations(self) -> dict[str, Ideal]:
        """The memories of the paper's construction (Section 4.2)."""
        from induction_memory.task.ideals import feed_forward, induction_head

        matched = self.trigger_probabilities > 0
        attention = induction_head(self.length, self.vocab_size, matched=matched, ask_all=True)
        return attention | {"W_F": feed_forward(self.bigram, self.fixed_triggers)}

    def variants(self) -> dict[str, "BigramTask"]:
        """Other outputs: uniform, from the global bigrams, or from one part of the vocabulary. Impossible ones are left
        out."""
        changes: dict[str, dict[str, Any]] = {
            "uniform": {"outputs": "uniform"},
            "bigram": {"outputs": "bigram"},
            "train": {"output_part": "train"},
            "test": {"output_part": "test"},
        }
        made = {}
        for name, change in changes.items():
            try:
                made[name] = replace(self, **change)
            except InputError:  # some trigger would have no output: no such variant
                continue
        return made

    def corruptions(self) -> "dict[str, Callable[[BigramBatch, np.random.Generator], Pairs]]":
        """`trigger`, `output` and `first` (`corruptions.py`)."""
        from induction_memory.task.corruptions import corrupt

        kinds = ("trigger", "output", "first")
        return {kind: lambda batch, rng, kind=kind: corrupt(batch, kind, rng) for kind in kinds}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a corpus that does not ship is written out as its counts."""
        corpus = {"corpus": self.corpus.to_dict()} if isinstance(self.corpus, Corpus) else {}
        return as_plain(self) | corpus

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BigramTask":
        """The inverse of `to_dict`; an unknown key is refused."""
        corpus = values.get("corpus")
        made = {"corpus": Corpus.from_dict(corpus)} if isinstance(corpus, dict) else {}
        return from_plain(cls, values | made, "task")


def require_probabilities(values: Any, field: str, shape: tuple[int, ...]) -> None:
    """Raise an InputError unless `values` has the shape and its last axis holds probabilities."""
    try:
        p = np.array(values, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{field}: expected numbers of shape {shape} (the vocabulary), got {error}") from error
    require(p.shape == shape, field, f"shape {shape} (the vocabulary)", p.shape)
    require(bool((p >= 0).all()), field, "probabilities of 0 or more", p.min())
    sums = np.atleast_1d(p.sum(-1))
    worst = sums[np.abs(sums - 1).argmax()]
    require(bool(abs(worst - 1) <= SUM_TOLERANCE), field, "probabilities that sum to 1", f"a sum of {worst:.6g}")
