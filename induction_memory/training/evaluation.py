"""What one pass over a batch gives: the loss, its gradients, and how each position was predicted.

The loss is the mean of -log softmax(logits)[target] over the trained positions: all that the task counts ("all"), its
main group ("main", or "trigger-output", the paper's name), or another group. With soft targets it is the mean of
-sum_j y_j log softmax(logits)[j]. A batch without a trained position has no loss (nan) and zero gradients, so that it
moves nothing.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.experiment.train_config import Loss
from induction_memory.task.batch import Batch


@dataclass(frozen=True)
class Evaluation:
    """Loss, gradients and predictions of one batch."""

    loss: float
    """Mean over the trained positions; nan if there is none."""
    nll: Float[Tensor, "batch pos"]
    """-log p(target); NaN where not evaluated."""
    correct: Bool[Tensor, "batch pos"]
    """Whether the likeliest output is the target; False where not evaluated, and where targets are soft."""
    evaluated: Bool[Tensor, "batch pos"]
    """The positions at which `nll` and `correct` were computed."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By parameter name, for exactly the parameters that have requires_grad; empty when not asked for."""


def trained_positions(batch: Batch, loss: Loss) -> Bool[Tensor, "batch pos"]:
    """The positions whose predictions the loss averages."""
    return batch.group(None if loss in ("main", "trigger-output") else loss)


def safe_targets(batch: Batch) -> Tensor:
    """The targets, with a valid output at positions that the task does not ask."""
    return batch.targets if batch.soft else torch.where(batch.counted, batch.targets, 0)


def mean_loss(nll: Float[Tensor, "batch pos"], trained: Bool[Tensor, "batch pos"]) -> float:
    """Mean over the trained positions, summed in double precision; nan if there is none."""
    chosen = nll[trained]
    return float(chosen.double().mean()) if chosen.numel() else math.nan


def output_is_tied(model: nn.Module) -> bool:
    """Whether the unembedding is a view of the token embedding, so that its gradient belongs to W_E."""
    parameters = dict(model.named_parameters())
    tied = parameters["unembed.W_U"].data_ptr() == parameters["embed.W_E"].data_ptr()
    config = getattr(model, "model_config", None)
    require(
        tied or not getattr(config, "tied_output", False),
        "model.tied_output",
        "unembed.W_U to be a view of embed.W_E",
        "a copy (a model that was copied or moved must be tied again)",
    )
    return tied
