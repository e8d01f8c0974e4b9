"""Scores of a run: losses, accuracies and the distance to the intact run, each with a standard error.

Scores are means over the positions of each group of the task, with the standard error of `task/averages.py`. For
in-context bigrams the groups are in_context (a trigger seen before) and global (not a trigger).

KL is KL(p_intact || p), with p the run's prediction, averaged over all positions that the task counts.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.task.averages import masked_mean
from induction_memory.task.batch import Batch


def scored_groups(batch: Batch) -> list[str]:
    """The groups that have scores: all except first occurrences, whose outputs cannot be known yet."""
    return [name for name in batch.groups if not name.startswith("first")]


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores any number of runs on the same batch against the same intact run."""

    intact: Float[Tensor, "batch pos vocab"]
    """Logits."""
    batch: Batch
    where: Bool[Tensor, "batch pos"] | None = None
    """The only positions to score; all when not given."""

    def __call__(self, logits: Float[Tensor, "*variant batch pos vocab"]) -> dict[str, Float[Tensor, "*variant"]]:
        """Every score and its standard error (`kl`, `kl_se` ...), one value per variant.

        Where targets are soft the loss is their cross-entropy, and there is no accuracy.
        """
        log_p, batch = logits.log_softmax(-1), self.batch
        p, log_intact = self._intact
        if batch.soft:
            scores = {"loss": -(batch.targets.to(log_p.dtype) * log_p).sum(-1)}
        else:
            targets = torch.where(batch.counted, batch.targets, 0).expand(logits.shape[:-1])
            loss = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
            scores = {"accuracy": is_right(logits, targets), "loss": loss}
        rows = [
            (f"{group}_{name}", values, batch.group(group))
            for group in scored_groups(batch)
            for name, values in scores.items()
        ]
        rows.append(("kl", torch.linalg.vecdot(p, log_intact - log_p), batch.counted))
        names, values, masks = zip(*rows, strict=True)
        where = torch.stack(masks) if self.where is None else torch.stack(masks) & self.where
        means, errors = (one.unbind(-1) for one in masked_mean(torch.stack(values, dim=-3), where))
        result = {}
        for name, mean, error in zip(names, means, errors, strict=True):
            result[name], result[f"{name}_se"] = mean, error
        return result

    @cached_property
    def _intact(self) -> tuple[Tensor, Tensor]:
        """The intact run's probabilities, and their logarithms."""
        log_p = self.intact.log_softmax(-1)
        return log_p.exp(), log_p


def is_right(logits: Float[Tensor, "*lead vocab"], targets: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    """1 where logits.argmax(-1) == targets, 0 elsewhere; nan where a logit is, which makes the argmax meaningless.

    Several times faster than that: the argmax is taken only where maxima tie, or are nan.
    """
    best = logits.amax(-1, keepdim=True)
    if int(torch.count_nonzero(logits == best)) != best.numel():
        right = (logits.argmax(-1) == targets).to(logits.dtype)
        return torch.where(best.squeeze(-1).isnan(), torch.nan, right)
    return (logits.gather(-1, targets.unsqueeze(-1)) == best).squeeze(-1).to(logits.dtype)


def score(
    logits: Float[Tensor, "*variant batch pos vocab"],
    intact: Float[Tensor, "batch pos vocab"],
    batch: Batch,
    where: Bool[Tensor, "batch pos"] | None = None,
) -> dict[str, Float[Tensor, "*variant"]]:
    """All scores of one group of runs; at some positions only, if given."""
    return Scorer(intact, batch, where)(logits)
