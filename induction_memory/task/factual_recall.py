"""Factual recall (Nichani, Lee & Bietti 2024, "Understanding factual recall in transformers via associative memories",
arXiv 2412.06538).

There are S subjects and R relations, and each pair has one answer a(s, r). Each relation has its own D answers, and
a(s, r) is one of them, drawn once for all sequences. A sequence of T tokens holds one subject, one relation and noise
tokens at random positions, and ends with the token `ask`:

    z = ( noise  s  noise  noise  r  noise  ... ask ),        target at the last position: a(s, r).

Answers have their own vocabulary. A model that knows only the relation predicts one of its D answers: the paper's
"hallucination" phase.

Predictors predict after every prefix: `fact` is the mean of 1{j = a(s, r)} over the pairs (s,
r) that the prefix leaves possible, `relation` averages over all subjects, `marginal` over all pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import check_fields
from induction_memory.task.batch import Batch, require_tokens
from induction_memory.task.corruptions import Pairs, with_queries
from induction_memory.task.ideals import one_key
from induction_memory.task.protocol import Ideal, NotOfferedError, Predictor, read_only, register, require_draw

Part = Literal["subject", "relation"]


@register
@field_docs
@dataclass(frozen=True)
class FactualRecall:
    """Facts among noise: a sequence holds a subject and a relation; the target at its last token is their answer.

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
    """T, the number of tokens of a sequence, with the token `ask`."""
    facts_seed: int = 0
    """Seed of the facts."""

    def __post_init__(self) -> None:
        least = {"subjects": 1, "relations": 1, "answers": 1, "noise_tokens": 0, "facts_seed": 0}
        check_fields(self, "task", length=(3, None, "tokens"), **{name: (low, None) for name, low in least.items()})
        enough = self.noise_tokens > 0 or self.length == 3
        require(enough, "task.noise_tokens", "1 or more where task.length is above 3", self.noise_tokens)

    @cached_property
    def facts(self) -> Int[np.ndarray, "subject relation"]:
        """a(s, r), the id of the answer."""
        rng = np.random.default_rng(self.facts_seed)
        chosen = rng.integers(self.answers, size=(self.subjects, self.relations))
        return read_only(chosen + self.answers * np.arange(self.relations))

    @property
    def first_relation(self) -> int:
        """Id of the first relation; the subjects come before."""
        return self.subjects

    @property
    def first_noise(self) -> int:
        """Id of the first noise token; subjects and relations come before."""
        return self.subjects + self.relations

    @property
    def asking(self) -> int:
        """The id of the token `ask`, the last of the vocabulary."""
        return self.first_noise + self.noise_tokens

    @property
    def n_inputs(self) -> int:
        return self.asking + 1

    @property
    def n_outputs(self) -> int:
        return self.relations * self.answers

    def sample(self, n: int, rng: np.random.Generator) -> Batch:
        """Draw `n` sequences. The only group is `query`, the last position."""
        require_draw(n, self.length, rng)
        T = self.length
        subject, relation = rng.integers(self.subjects, size=n), rng.integers(self.relations, size=n)
        tokens = self.first_noise + rng.integers(max(self.noise_tokens, 1), size=(n, T))
        places = rng.random((n, T - 1)).argsort(1)[:, :2]
        here = np.arange(n)
        tokens[here, places[:, 0]] = subject
        tokens[here, places[:, 1]] = self.first_relation + relation
        tokens[:, -1] = self.asking
        answer = torch.from_numpy(self.facts[subject, relation])
        asked = torch.zeros(n, T, dtype=torch.bool)
        asked[:, -1] = True
        return Batch(
            torch.from_numpy(tokens),
            answer[:, None].expand(n, T).contiguous(),
            counted=asked,
            groups={"query": asked},
            main=self.main,
            latents={"subject": torch.from_numpy(subject), "relation": torch.from_numpy(relation)},
        )

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs = [f"s{s}" for s in range(self.subjects)] + [f"r{r}" for r in range(self.relations)]
        inputs += [f"n{i}" for i in range(self.noise_tokens)] + ["?"]
        return tuple(inputs), tuple(f"a{r}.{d}" for r in range(self.relations) for d in range(self.answers))

    def predictors(self) -> dict[str, Predictor]:
        """`marginal` (how often each answer is right), `relation` (knows the relation alone) and `fact`."""
        facts = torch.nn.functional.one_hot(torch.from_numpy(np.array(self.facts)), self.n_outputs).to(torch.float64)
        facts = torch.cat([facts, facts.mean(0, keepdim=True)])  # the last subject: not known
        facts = torch.cat([facts, facts.mean(1, keepdim=True)], 1)  # the last relation: not known

        def fact(tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos answer"]:
            return facts[_seen(self, tokens, "subject"), _seen(self, tokens, "relation")]

        return {
            "marginal": lambda tokens: facts[-1, -1].expand(*tokens.shape, -1),
            "relation": lambda tokens: facts[-1, _seen(self, tokens, "relation")],
            "fact": fact,
        }

    def sources(self, batch: Batch) -> dict[str, Tensor]:
        """`subject` and `relation`: their positions, as keys of the last position."""
        found = {}
        for part in ("subject", "relation"):
            key = torch.full_like(batch.tokens, -1)
            key[:, -1] = _place(self, batch.tokens, part)
            found[part] = one_key(key, batch.tokens.shape[1])
        return found

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

    def corruptions(self) -> dict[str, Callable[[Batch, np.random.Generator], Pairs]]:
        """`subject` and `relation`: another one, with another answer."""

        return {"subject": partial(self.other_fact, "subject"), "relation": partial(self.other_fact, "relation")}

    def other_fact(self, part: Part, batch: Batch, rng: np.random.Generator) -> Pairs:
        """Another subject, or relation, with another answer; sequences for which none exists are left out."""
        facts = torch.from_numpy(np.array(self.facts))
        subject, relation = batch.latents["subject"], batch.latents["relation"]
        answers = facts[:, relation].T if part == "subject" else facts[subject]
        right = facts[subject, relation]
        differs = answers != right[:, None]
        possible = torch.zeros_like(batch.counted)
        possible[:, -1] = differs.any(1)
        chosen = torch.from_numpy(rng.random(differs.shape)).masked_fill(~differs, -1).argmax(1)
        kept = differs.any(1)
        batch, query = with_queries(batch, possible, f"another {part} has another answer")
        chosen, answer, other = chosen[kept], right[kept], answers.gather(1, chosen[:, None]).squeeze(1)[kept]
        place = _place(self, batch.tokens, part)
        tokens = batch.tokens.clone()
        tokens[torch.arange(len(batch)), place] = chosen + (0 if part == "subject" else self.first_relation)
        roles = {name: _place(self, batch.tokens, name) for name in ("subject", "relation")}
        return Pairs(batch, replace(batch, tokens=tokens), query, answer, other, roles)


def is_part(task: Any, tokens: Int[Tensor, "batch pos"], part: Part) -> Bool[Tensor, "batch pos"]:
    """Which tokens are subjects, or relations."""
    if part == "subject":
        return tokens < task.first_relation
    return (tokens >= task.first_relation) & (tokens < task.first_noise)


def _seen(task: Any, tokens: Int[Tensor, "batch pos"], part: Part) -> Int[Tensor, "batch pos"]:
    """The subject (or relation) seen up to each position, as a number; S (or R) if there is none yet."""
    require_tokens(tokens, task.n_inputs)
    mask = is_part(task, tokens, part)
    require(bool((mask.sum(1) <= 1).all()), "tokens", f"at most one {part} per sequence", int(mask.sum(1).max()))
    first, count = (0, task.subjects) if part == "subject" else (task.first_relation, task.relations)
    number = torch.where(mask, tokens - first, 0).cumsum(1)
    return torch.where(mask.cumsum(1) > 0, number, count)


def _place(task: Any, tokens: Int[Tensor, "batch pos"], part: Part) -> Int[Tensor, " batch"]:
    return is_part(task, tokens, part).int().argmax(1)
