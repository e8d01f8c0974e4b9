"""One pass over a batch, as training needs it: the loss, its gradients, and how each position was predicted."""

from torch import nn

from induction_memory.task.sampler import Batch
from induction_memory.training.clamps import Clamps
from induction_memory.training.config import Loss
from induction_memory.training.evaluation import Evaluation
from induction_memory.training.plain import plain_evaluate

__all__ = ["Clamps", "Evaluation", "evaluate", "plain_evaluate"]


def evaluate(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    *,
    gradients: bool = True,
    clamps: Clamps | None = None,
    micro_batch: int | None = None,
    full_metrics: bool = False,
) -> Evaluation:
    """Loss, gradients and predictions of one batch.

    Under "trigger-output" only the trained positions are evaluated, unless `full_metrics` asks for all of them; the
    gradients come from the trained positions alone in either case.
    """
    return plain_evaluate(
        model,
        batch,
        loss,
        gradients=gradients,
        clamps=clamps,
        micro_batch=micro_batch,
        full_metrics=full_metrics,
    )
