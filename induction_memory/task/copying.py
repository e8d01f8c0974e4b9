"""Copying at controlled distances (Kawata et al. 2025, "From shortcut to induction head", arXiv 2512.18634).

A trigger q occurs twice in each sequence. At the second q the target is o, the token that followed the first:

    z = ( l_1 tokens   q   o   l_2 tokens   q   ... ),        target at the second q: o.

All other tokens, o included, are uniform over an alphabet without the trigger. Training sequences have l_1 = l_2 = l,
with l drawn from the given spans. The output is then in the middle of the tokens read so far, so a positional shortcut
does as well as an induction head. With few spans the shortcut is easy to store; with many it is not. Sequences with l_1
!= l_2 and the second trigger at the same position tell the two apart.

Counting positions from 0, the second trigger is at P = l_1 + l_2 + 2 and the output at l_1 + 1. In training both
spans are l, so that the output stands at P / 2: `shortcut` copies that token, wherever the first trigger is.
`induction` copies what followed the first trigger. Where there is nothing to copy, both predict a uniform distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.field_docs import field_docs
from induction_memory.fields import check_fields, require_integer
from induction_memory.task.batch import Batch, require_tokens
from induction_memory.task.corruptions import Pairs, at, last_of
from induction_memory.task.ideals import after_same_context, induction_head, one_key, previous
from induction_memory.task.protocol import Ideal, Predictor, register, require_draw

Placement = Literal["middle", "elsewhere", "any"]


@register
@field_docs
@dataclass(frozen=True)
class Copying:
    """Copying: after the second trigger, predict what followed the first, at controlled distances.

    >>> import induction_memory as im
    >>> list(im.task.Copying(spans=(4, 6)).predictors())
    ['uniform', 'shortcut', 'induction']
    """

    name: ClassVar[str] = "copying"
    main: ClassVar[str] = "query"
    groups: ClassVar[tuple[str, ...]] = ("query",)

    alphabet: int = 32
    """How many tokens there are besides the trigger."""
    spans: tuple[int, ...] = (4, 6, 8, 10, 12)
    """The values of l, all equally likely."""
    placement: Placement = "middle"
    """Where the output is: l_1 = l_2 = l (middle); any l_1 != l_2 with l_1 + l_2 = 2 l (elsewhere); l_1 and l_2 drawn
    from the spans (any)."""
    longest: int | None = None
    """The largest l that a sequence has room for; by default the largest span."""

    def __post_init__(self) -> None:
        check_fields(self, "task", alphabet=(2, None, "tokens"), longest=(0, None))
        require(len(self.spans) > 0, "task.spans", "at least one", "none")
        for span in self.spans:
            require_integer(span, "task.spans", 0, self.longest)
        require(len(set(self.spans)) == len(self.spans), "task.spans", "different ones", self.spans)
        room = self.placement != "elsewhere" or min(self.spans) >= 1
        require(room, "task.spans", "1 or more where the output is not in the middle", min(self.spans))

    @property
    def length(self) -> int:
        """T = 2 l + 3 for the largest l; shorter sequences are filled up with tokens of the alphabet."""
        return 2 * (max(self.spans) if self.longest is None else self.longest) + 3

    @property
    def trigger(self) -> int:
        """q, the id after the alphabet's last."""
        return self.alphabet

    @property
    def n_inputs(self) -> int:
        return self.alphabet + 1

    @property
    def n_outputs(self) -> int:
        return self.alphabet

    def sample(self, n: int, rng: np.random.Generator) -> Batch:
        """Draw `n` sequences. The only group is `query`, the second trigger."""
        require_draw(n, self.length, rng)
        T, here = self.length, np.arange(n)
        span = np.array(self.spans)[rng.integers(len(self.spans), size=n)]
        first = span
        if self.placement == "elsewhere":
            first = rng.integers(2 * span)  # 0 .. 2l without l, by stepping over it
            first = first + (first >= span)
        second = 2 * span + 2
        if self.placement == "any":
            second = span + np.array(self.spans)[rng.integers(len(self.spans), size=n)] + 2
        tokens = rng.integers(self.alphabet, size=(n, T + 1))
        tokens[here, first] = tokens[here, second] = self.trigger
        tokens[here, second + 1] = output = tokens[here, first + 1]
        asked = torch.arange(T) == torch.from_numpy(second)[:, None]
        return Batch(
            torch.from_numpy(np.ascontiguousarray(tokens[:, :-1])),
            torch.where(asked, torch.from_numpy(output)[:, None], 0),
            counted=asked,
            groups={"query": asked},
            main=self.main,
            latents={"first": torch.from_numpy(first), "output": torch.from_numpy(output)},
        )

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        outputs = tuple(str(token) for token in range(self.alphabet))
        return (*outputs, "q"), outputs

    def predictors(self) -> dict[str, Predictor]:
        """`uniform`, `shortcut` (copies the middle of the tokens read so far) and `induction`, which is
        Bayes-optimal."""
        return {
            "uniform": lambda tokens: _copied(self, tokens, torch.full_like(tokens, -1)),
            "shortcut": lambda tokens: _copied(self, tokens, middle(self, tokens)),
            "induction": lambda tokens: _copied(self, tokens, after_first(self, tokens)),
        }

    def sources(self, batch: Batch) -> dict[str, Tensor]:
        """`previous`; for the query also `induction`, the position of the output, and `shortcut`, the middle."""
        tokens, pos = batch.tokens, batch.tokens.shape[1]
        asked = batch.group("query")[:, :, None]
        return {
            "previous": previous(tokens),
            "induction": after_same_context(tokens) & asked,
            "shortcut": one_key(middle(self, tokens), pos) & asked,
        }

    def associations(self) -> dict[str, Ideal]:
        """The ideal memories of the induction head and of the positional shortcut; W_O2, which copies, serves both."""
        T = self.length
        middle = np.zeros((T, T))
        for span in self.spans:
            middle[2 * span + 2, span + 1] = 1
        matched = np.arange(self.n_inputs) == self.trigger
        shortcut = Ideal("position", "position", middle, "the query's position stores the middle")
        return induction_head(T, self.n_inputs, self.n_outputs, matched=matched) | {"shortcut": shortcut}

    def variants(self) -> dict[str, "Copying"]:
        """`elsewhere`: the output is not in the middle. `other spans`: the values of l between the training spans."""
        largest = max(self.spans) if self.longest is None else self.longest
        found: dict[str, Copying] = {}
        if self.placement != "elsewhere" and any(self.spans):
            spans = tuple(span for span in self.spans if span >= 1)
            found["elsewhere"] = replace(self, spans=spans, placement="elsewhere", longest=largest)
        unseen = tuple(span for span in range(1, largest + 1) if span not in self.spans)
        if unseen:
            found["other spans"] = replace(self, spans=unseen, longest=largest)
        return found

    def corruptions(self) -> dict[str, Callable[[Batch, np.random.Generator], Pairs]]:
        """`output`: another output after the first trigger. `trigger`: the first trigger becomes another token."""

        return {"output": partial(self.corrupted, "output"), "trigger": partial(self.corrupted, "trigger")}

    def corrupted(self, kind: Literal["output", "trigger"], batch: Batch, rng: np.random.Generator) -> Pairs:
        """Replace the output, or the first trigger, by another token of the alphabet."""
        n, query = len(batch), last_of(batch.group("query"))
        answer, first = at(batch.targets, query), batch.latents["first"]
        other = (answer + torch.from_numpy(rng.integers(1, self.alphabet, size=n))) % self.alphabet
        tokens = batch.tokens.clone()
        tokens[torch.arange(n), first + (kind == "output")] = other
        changed = replace(batch, tokens=tokens)
        return Pairs(batch, changed, query, answer, other, {"trigger": first, "output": first + 1})


def middle(task: Any, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """P / 2 where a trigger other than the first is at an even position P; -1 elsewhere."""
    here = torch.arange(tokens.shape[1], device=tokens.device)
    asked = (after_first(task, tokens) >= 0) & (here % 2 == 0)
    return torch.where(asked, here // 2, -1)


def after_first(task: Any, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos"]:
    """The position after the first trigger, for every later trigger; -1 elsewhere."""
    is_trigger = tokens == task.trigger
    again = is_trigger & (is_trigger.cumsum(1) >= 2)
    return torch.where(again, is_trigger.int().argmax(1, keepdim=True) + 1, -1)


def _copied(
    task: Any, tokens: Int[Tensor, "batch pos"], place: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos output"]:
    """Probability one for the token at `place`; uniform where `place` is -1 or holds a trigger."""
    require_tokens(tokens, task.n_inputs)
    found = tokens.gather(1, place.clamp(min=0))
    known = (place >= 0) & (found < task.n_outputs)
    copy = torch.nn.functional.one_hot(torch.where(known, found, 0), task.n_outputs).to(torch.float64)
    return torch.where(known.unsqueeze(-1), copy, 1 / task.n_outputs)
