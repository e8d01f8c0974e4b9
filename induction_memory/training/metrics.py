"""What each training step reports, measured on a fresh batch before it is used.

Means of -log p(target), and of 1{the likeliest output is the target}, over each group of positions of the task. For
in-context bigrams these are

    in_context         second and later occurrences of a trigger
    global             tokens that are not triggers
    first_occurrence   a trigger seen for the first time

A group that was not evaluated at this step (see TrainConfig.full_metrics_every), or that has no position in the batch,
is None; so is an accuracy where targets are soft. Norms are Frobenius norms; a frozen matrix has no gradient.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Bool, Shaped
from torch import Tensor

from induction_memory.field_docs import field_docs
from induction_memory.task.batch import Batch
from induction_memory.training.evaluation import Evaluation


@field_docs
@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl."""

    step: int
    """Number of updates done before."""
    loss: float
    """The loss that is minimised."""
    main: str
    """The group that adaptive checkpoints and the progress line follow."""
    losses: Mapping[str, float | None]
    """Group -> mean loss; `accuracies` likewise."""
    accuracies: Mapping[str, float | None]
    out_of_distribution_accuracy: float | None = None
    """Accuracy on the main group of the second task."""
    weight_norms: Mapping[str, float] = field(default_factory=dict)
    """The paper's name of a matrix -> its norm; the two fields below go by the same names."""
    gradient_norms: Mapping[str, float | None] = field(default_factory=dict)
    recalls: Mapping[str, float] = field(default_factory=dict)
    """Measured for adaptive checkpoints only; `probes` measures them, and more, on the trajectory."""

    def row(self) -> dict[str, Any]:
        """Column -> number, or None for what was not measured or is not finite."""
        flat: dict[str, float | None] = {"step": self.step, "loss": self.loss}
        flat |= {f"loss_{group}": value for group, value in self.losses.items()}
        flat |= {f"accuracy_{group}": value for group, value in self.accuracies.items()}
        flat["out_of_distribution_accuracy"] = self.out_of_distribution_accuracy
        named = {"weight_norm": self.weight_norms, "gradient_norm": self.gradient_norms, "recall": self.recalls}
        flat |= {f"{kind}_{name}": value for kind, values in named.items() for name, value in values.items()}
        return {name: None if value is None or not math.isfinite(value) else value for name, value in flat.items()}

    @property
    def watched(self) -> dict[str, float | None]:
        """The values that adaptive checkpoints follow."""
        return watched_values(self.row(), self.main)


def watched_values(row: Mapping[str, Any], main: str) -> dict[str, float | None]:
    """The columns of a row that adaptive checkpoints follow: the accuracy of the main group and the recalls."""
    return {name: row[name] for name in row if name == f"accuracy_{main}" or name.startswith("recall_")}


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
        main=batch.main,
        losses={name: class_mean(evaluation.nll, mask, evaluation.evaluated) for name, mask in batch.groups.items()},
        accuracies={name: accuracy(evaluation, batch, name) for name in batch.groups},
        out_of_distribution_accuracy=out_of_distribution,
        weight_norms={name: float(value.norm()) for name, value in weights.items()},
        gradient_norms={name: None if g is None else float(g.norm()) for name, g in gradients.items()},
        recalls=dict(recalls or {}),
    )


def accuracy(evaluation: Evaluation, batch: Batch, group: str) -> float | None:
    """How often the likeliest output is the target, over a group; None where targets are soft."""
    return None if batch.soft else class_mean(evaluation.correct, batch.group(group), evaluation.evaluated)


def main_accuracy(evaluation: Evaluation, batch: Batch) -> float | None:
    """The accuracy over the main group: for bigrams from the second occurrence of a trigger on."""
    return accuracy(evaluation, batch, batch.main)


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
