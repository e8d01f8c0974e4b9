"""Factual recall (Nichani, Lee & Bietti 2024, "Understanding factual recall in transformers via associative memories",
arXiv 2412.06538).

There are S subjects and R relations, and each pair has one answer a(s, r). Each relation has D answers of its own, and
a(s, r) is one of them, drawn once for all sequences. A sequence of T tokens holds one subject, one relation and noise
tokens in random places, and ends with a token that asks:

    z = ( noise  s  noise  noise  r  noise  ... ask ),        target at the last position: a(s, r).

Answers are a vocabulary of their own. A model that knows the relation alone says one of its D answers: the paper's
"hallucination" phase.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Int

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.task.fields import read_only, require_integer
from induction_memory.task.protocol import Ideal, NotOfferedError, Predictor
from induction_memory.task.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from induction_memory.task.batch import Batch
    from induction_memory.task.pairs import Pairs


@register
@field_docs
@dataclass(frozen=True)
class FactualRecall:
    """Facts among noise: a subject and a relation stand in the sequence, and the last token asks for their answer.

    >>> import induction_memory as im
    >>> task = im.task.FactualRecall(subjects=4, relations=2, answers=3, length=8)
    >>> task.n_inputs, task.n_outputs, list(task.predictors())
    (23, 6, ['marginal', 'relation', 'fact'])
    """

    name: ClassVar[str] = "factual-recall"
    main: ClassVar[str] = "query"
    groups: ClassVar[tuple[str, ...]] = ("query",)

    subjects: int = 32
    """S, the number of subjects."""
    relations: int = 8
    """R, the number of relations."""
    answers: int = 8
    """D, the number of answers of each relation; there are R D in all."""
    noise_tokens: int = 16
    """How many noise tokens there are."""
    length: int = 16
    """T, the number of tokens of a sequence, the one that asks included."""
    facts_seed: int = 0
    """Which facts."""

    def __post_init__(self) -> None:
        require_integer(self.subjects, "task.subjects", 1, None)
        require_integer(self.relations, "task.relations", 1, None)
        require_integer(self.answers, "task.answers", 1, None)
        require_integer(self.noise_tokens, "task.noise_tokens", 0, None)
        require_integer(self.length, "task.length", 3, None, "tokens")
        enough = self.noise_tokens > 0 or self.length == 3
        require(enough, "task.noise_tokens", "1 or more where task.length is above 3", self.noise_tokens)
        require_integer(self.facts_seed, "task.facts_seed", 0, None)

    @cached_property
    def facts(self) -> Int[np.ndarray, "subject relation"]:
        """a(s, r), the id of the answer."""
        rng = np.random.default_rng(self.facts_seed)
        chosen = rng.integers(self.answers, size=(self.subjects, self.relations))
        return read_only(chosen + self.answers * np.arange(self.relations))

    @property
    def first_relation(self) -> int:
        """Token of the first relation; the subjects come before."""
        return self.subjects

    @property
    def first_noise(self) -> int:
        """Token of the first noise token; subjects and relations come before."""
        return self.subjects + self.relations

    @property
    def asking(self) -> int:
        """The token that asks, the last."""
        return self.first_noise + self.noise_tokens

    @property
    def n_inputs(self) -> int:
        return self.asking + 1

    @property
    def n_outputs(self) -> int:
        return self.relations * self.answers

    def sample(self, n: int, rng: np.random.Generator) -> "Batch":
        """Draw `n` sequences. The only group is `query`, the last position."""
        from induction_memory.task.recall.sequences import sample

        return sample(self, n, rng)

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs = [f"s{s}" for s in range(self.subjects)] + [f"r{r}" for r in range(self.relations)]
        inputs += [f"n{i}" for i in range(self.noise_tokens)] + ["?"]
        return tuple(inputs), tuple(f"a{r}.{d}" for r in range(self.relations) for d in range(self.answers))

    def predictors(self) -> dict[str, Predictor]:
        """`marginal` (how often each answer is right), `relation` (knows the relation alone) and `fact`."""
        from induction_memory.task.recall.sequences import predictors

        return predictors(self)

    def sources(self, batch: "Batch") -> "dict[str, Tensor]":
        """`subject` and `relation`: where they stand, for the position that asks."""
        from induction_memory.task.recall.sequences import sources

        return sources(self, batch)

    def associations(self) -> dict[str, Ideal]:
        """What one value matrix would store: the answers of each subject, and of each relation."""
        shape = self.n_outputs, self.n_inputs
        subject, relation = np.zeros(shape), np.zeros(shape)
        for s, r in np.ndindex(*self.facts.shape):
            subject[self.facts[s, r], s] = 1
            relation[self.facts[s, r], self.first_relation + r] = 1
        return {
            "subject": Ideal("token", "output", subject, "each subject stores its answer to every relation"),
            "relation": Ideal("token", "output", relation, "each relation stores the answers it has"),
        }

    def variants(self) -> dict[str, "FactualRecall"]:
        raise NotOfferedError(
            f"the task {self.name!r} offers no variants: facts are memorised, and other facts cannot be known"
        )

    def corruptions(self) -> "dict[str, Callable[[Batch, np.random.Generator], Pairs]]":
        """`subject` and `relation`: another one, with another answer."""
        from induction_memory.task.recall.sequences import other_fact

        return {"subject": partial(other_fact, self, "subject"), "relation": partial(other_fact, self, "relation")}
