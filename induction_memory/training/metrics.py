"""What each training step reports, measured on a fresh batch before it is used.

Means of -log p(target), and of 1{the likeliest token is the target}, over the classes of positions:

    in context         second and later occurrences of a trigger
    global             no trigger
    first occurrence   a trigger seen for the first time

A class that was not evaluated at this step (see TrainConfig.full_metrics_every), or that has no position in the batch,
is None. Norms are Frobenius norms; a frozen matrix has no gradient.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jaxtyping import Bool, Shaped
from torch import Tensor

from induction_memory.task.sampler import Batch
from induction_memory.training.evaluation import Evaluation


@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl."""

    step: int
    """Updates done before."""
    loss: float
    """What is minimised."""
    loss_in_context: float | None
    loss_global: float | None
    loss_first_occurrence: float | None
    accuracy_in_context: float | None
    accuracy_global: float | None
    out_of_distribution_accuracy: float | None = None
    """In-context accuracy on the second task."""
    weight_norms: Mapping[str, float] = field(default_factory=dict)
    """By the paper's name, as the two below."""
    gradient_norms: Mapping[str, float | None] = field(default_factory=dict)
    recalls: Mapping[str, float] = field(default_factory=dict)
    """Measured for adaptive checkpoints only; `probes` measures them, and more, on the trajectory."""

    def row(self) -> dict[str, Any]:
        """Flat: column -> number, or None for what was not measured or is not finite."""
        groups = {"weight_norms": "weight_norm_", "gradient_norms": "gradient_norm_", "recalls": "recall_"}
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in groups}
        flat = plain | {
            prefix + name: value for group, prefix in groups.items() for name, value in getattr(self, group).items()
        }
        return {name: None if value is None or not math.isfinite(value) else value for name, value in flat.items()}

    @property
    def watched(self) -> dict[str, float | None]:
        """The values that adaptive checkpoints follow."""
        return watched_values(self.row())


def watched_values(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The columns of a row that adaptive checkpoints follow."""
    return {name: row[name] for name in row if name == "accuracy_in_context" or name.startswith("recall_")}


def measure(
    step: int,
    evaluation: Evaluation,
    batch: Batch,
    *,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor | None],
    out_of_distribution: float | None = None,
    recalls: Mapping[str, float] | None = None,
) -> Metrics:
    """The metrics of one evaluated batch."""
    return Metrics(
        step=step,
        loss=evaluation.loss,
        loss_in_context=class_mean(evaluation.nll, batch.in_context, evaluation.evaluated),
        loss_global=class_mean(evaluation.nll, batch.global_, evaluation.evaluated),
        loss_first_occurrence=class_mean(evaluation.nll, batch.first_occurrence, evaluation.evaluated),
        accuracy_in_context=in_context_accuracy(evaluation, batch),
        accuracy_global=class_mean(evaluation.correct, batch.global_, evaluation.evaluated),
        out_of_distribution_accuracy=out_of_distribution,
        weight_norms={name: float(value.norm()) for name, value in weights.items()},
        gradient_norms={name: None if g is None else float(g.norm()) for name, g in gradients.items()},
        recalls=dict(recalls or {}),
    )


def in_context_accuracy(evaluation: Evaluation, batch: Batch) -> float | None:
    """How often the likeliest token is the target, from the second occurrence of a trigger on."""
    return class_mean(evaluation.correct, batch.in_context, evaluation.evaluated)


def class_mean(
    values: Shaped[Tensor, "batch pos"],
    members: Bool[Tensor, "batch pos"],
    evaluated: Bool[Tensor, "batch pos"],
) -> float | None:
    """Mean over a class of positions; None when the class is empty or not all of it was evaluated."""
    members = members.to(values.device)
    if not bool(members.any()) or bool((members & ~evaluated).any()):
        return None
    return float(values[members].double().mean())
