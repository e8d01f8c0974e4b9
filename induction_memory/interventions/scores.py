"""What a run is worth: losses, accuracies and the distance to the intact run, each with a standard error.

Over the positions M of a batch (in-context: a trigger seen before; global: no trigger) a score y is the ratio

    r = sum over sequences b of s_b / sum over b of n_b,    s_b = sum of y over M in b,  n_b = |M in b|.

Positions of one sequence are not independent, sequences are: the standard error is that of a ratio,

    se^2 = B / (B - 1) * sum_b (s_b - r n_b)^2 / (sum_b n_b)^2.

KL is that of the run's prediction from the intact model's, KL(p_intact || p), over all positions.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.task.sampler import Batch

SCORES = ("in_context_accuracy", "in_context_loss", "global_accuracy", "global_loss", "kl")


def masked_mean(
    values: Float[Tensor, "*variant batch pos"], mask: Bool[Tensor, "batch pos"]
) -> tuple[Float[Tensor, "*variant"], Float[Tensor, "*variant"]]:
    """Mean over the masked positions and its standard error over sequences; NaN where there are too few."""
    weight = mask.to(values.dtype)
    sums, counts = (values * weight).sum(-1), weight.sum(-1)
    mean = sums.sum(-1) / counts.sum()
    batch = values.shape[-2]
    spread = (sums - mean.unsqueeze(-1) * counts).square().sum(-1)
    if batch < 2:
        return mean, torch.full_like(mean, torch.nan)
    return mean, (batch / (batch - 1) * spread).sqrt() / counts.sum()


def score(
    logits: Float[Tensor, "*variant batch pos vocab"],
    intact: Float[Tensor, "batch pos vocab"],
    batch: Batch,
    where: Bool[Tensor, "batch pos"] | None = None,
) -> dict[str, Float[Tensor, "*variant"]]:
    """Every score and its standard error (`kl`, `kl_se` ...), one value a variant; at some positions only, if given."""
    log_p, log_intact = logits.log_softmax(-1), intact.log_softmax(-1)
    targets = batch.targets.expand(log_p.shape[:-1]).unsqueeze(-1)
    loss = -log_p.gather(-1, targets).squeeze(-1)
    correct = (logits.argmax(-1, keepdim=True) == targets).squeeze(-1).to(loss.dtype)
    kl = (log_intact.exp() * (log_intact - log_p)).sum(-1)
    everywhere = torch.ones_like(batch.in_context)
    measured = {
        "in_context_accuracy": (correct, batch.in_context),
        "in_context_loss": (loss, batch.in_context),
        "global_accuracy": (correct, batch.global_),
        "global_loss": (loss, batch.global_),
        "kl": (kl, everywhere),
    }
    result = {}
    for name, (values, mask) in measured.items():
        result[name], result[f"{name}_se"] = masked_mean(values, mask if where is None else mask & where)
    return result
