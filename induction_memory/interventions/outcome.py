"""What a run is worth: losses, accuracies and the distance to the intact run, each with a standard error.

Scores are means over the positions of each group of the task, with the standard error of `task/averages.py`. For
in-context bigrams the groups are in_context (a trigger seen before) and global (no trigger).

KL is that of the run's prediction from the intact model's, KL(p_intact || p), over all positions that the task counts.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.task.averages import masked_mean
from induction_memory.task.batch import Batch


def scored_groups(batch: Batch) -> list[str]:
    """The groups that have scores: all but first occurrences, whose outputs nobody can know yet."""
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
            correct = (logits.max(-1).indices == targets).to(logits.dtype)
            scores = {"accuracy": correct, "loss": -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)}
        measured = {
            f"{group}_{name}": (values, batch.group(group))
            for group in scored_groups(batch)
            for name, values in scores.items()
        }
        measured["kl"] = torch.linalg.vecdot(p, log_intact - log_p), batch.counted
        result = {}
        for name, (values, mask) in measured.items():
            result[name], result[f"{name}_se"] = masked_mean(values, mask if self.where is None else mask & self.where)
        return result

    @cached_property
    def _intact(self) -> tuple[Tensor, Tensor]:
        """The intact run's probabilities, and their logarithms."""
        log_p = self.intact.log_softmax(-1)
        return log_p.exp(), log_p


def score(
    logits: Float[Tensor, "*variant batch pos vocab"],
    intact: Float[Tensor, "batch pos vocab"],
    batch: Batch,
    where: Bool[Tensor, "batch pos"] | None = None,
) -> dict[str, Float[Tensor, "*variant"]]:
    """All scores of one group of runs; at some positions only, if given."""
    return Scorer(intact, batch, where)(logits)
