"""The questions: predict the right output at positions where the context determines it.

The value of a run is the mean over these questions of

    logit             the right output's logit above the average, y_o - mean_j y_j (the default)
    log-probability   log softmax(y)_o
    accuracy          1 where the right output has the largest logit

stored as one sum per sequence, so that every difference of two runs has a standard error over sequences: for sums s_b
and numbers of questions n_b, the mean r = sum s_b / sum n_b has se^2 = B/(B-1) sum (s_b - r n_b)^2 / (sum n_b)^2.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.interventions.scores import is_right
from induction_memory.task.batch import Batch, ratio

Metric = Literal["logit", "log-probability", "accuracy"]
PER_SEQUENCE = 8
"""Questions per sequence. Further sequences add more information than further questions of one sequence."""


@dataclass(frozen=True, eq=False)
class Questions:
    """The positions at which the right output is asked for, and these outputs."""

    queries: Int[Tensor, "batch m"]
    """Positions."""
    targets: Int[Tensor, "batch m"]
    """The right outputs."""
    asked: Bool[Tensor, "batch m"]
    """False where a sequence has fewer than m questions and the entry is padding."""
    metric: Metric = "logit"

    @property
    def counts(self) -> Float64[Tensor, " batch"]:
        return self.asked.double().sum(1).cpu()

    def of(self, some: slice) -> "Questions":
        """The questions of some sequences."""
        return Questions(self.queries[some], self.targets[some], self.asked[some], self.metric)

    def sums(self, logits: Float[Tensor, "*variant batch m vocab"]) -> Float64[Tensor, "*variant batch"]:
        """The value of runs, summed over the questions of each sequence, as a tensor on the CPU."""
        targets = self.targets.expand(logits.shape[:-1]).unsqueeze(-1)
        if self.metric == "accuracy":
            values = is_right(logits, targets.squeeze(-1))
        else:
            level = logits.mean(-1) if self.metric == "logit" else logits.logsumexp(-1)
            values = logits.gather(-1, targets).squeeze(-1) - level
        return (values.double() * self.asked).sum(-1).cpu()

    def mean(
        self, sums: Float64[Tensor, "*variant batch"]
    ) -> tuple[Float64[Tensor, "*variant"], Float64[Tensor, "*variant"]]:
        """Mean per question and its standard error over sequences (nan if a single sequence has questions)."""
        return ratio(sums, self.counts)


def ask(batch: Batch, metric: Metric = "logit", *, at_most: int = PER_SEQUENCE, seed: int = 0) -> Questions:
    """Up to `at_most` positions of each sequence from the main group of the batch, chosen at random."""
    require(metric in get_args(Metric), "metric", f"one of {', '.join(get_args(Metric))}", repr(metric))
    require(at_most >= 1, "questions", "1 or more per sequence", at_most)
    possible = batch.group()
    require(bool(possible.any()), "batch", f"a position of the group {batch.main}", "none")
    require(not batch.soft, "batch", "sequences with one right output for each position", "soft targets")
    m = min(at_most, int(possible.sum(1).max()))
    order = torch.rand(possible.shape, generator=torch.Generator().manual_seed(seed)).to(possible.device)
    queries = order.masked_fill(~possible, -1).topk(m, dim=1).indices
    return Questions(queries, batch.targets.gather(1, queries), possible.gather(1, queries), metric)
