"""What a run is worth: losses, accuracies and the distance to the intact run, each with a standard error.

Scores are means over the in-context positions (a trigger seen before) or the global ones (no trigger), with the
standard error of `task/averages.py`.

KL is that of the run's prediction from the intact model's, KL(p_intact || p), over all positions.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.task.averages import masked_mean
from induction_memory.task.sampler import Batch

SCORES = ("in_context_accuracy", "in_context_loss", "global_accuracy", "global_loss", "kl")


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores any number of runs on the same batch against the same intact run."""

    intact: Float[Tensor, "batch pos vocab"]
    """Logits."""
    batch: Batch
    where: Bool[Tensor, "batch pos"] | None = None
    """The only positions to score; all when not given."""

    def __call__(self, logits: Float[Tensor, "*variant batch pos vocab"]) -> dict[str, Float[Tensor, "*variant"]]:
        """Every score and its standard error (`kl`, `kl_se` ...), one value per variant."""
        log_p, targets = logits.log_softmax(-1), self.batch.targets.expand(logits.shape[:-1])
        loss = -log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        correct = (logits.max(-1).indices == targets).to(logits.dtype)
        p, log_intact = self._intact
        measured = {
            "in_context_accuracy": (correct, self.batch.in_context),
            "in_context_loss": (loss, self.batch.in_context),
            "global_accuracy": (correct, self.batch.global_),
            "global_loss": (loss, self.batch.global_),
            "kl": (torch.linalg.vecdot(p, log_intact - log_p), torch.ones_like(self.batch.in_context)),
        }
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
