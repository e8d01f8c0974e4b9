"""Training as a generator of snapshots (Section 5), on fresh batches.

At step n, for n = 0 ... steps:

    1. grafts of step n replace their matrices
    2. batch n is drawn from the stream (data_seed, n), independently of earlier steps
    3. the metrics of step n are measured on it, with the weights before update n
    4. the snapshot of step n is yielded: its weights are checkpoint n (step 0: the initialisation)
    5. update n changes the parameters that are not frozen (there is no update after the last step)

The weights, the optimiser's state and the number of a step are the whole state of a run: from them, the loop continues
with the same bits.

The metrics are means of -log p(target), and of 1{the likeliest output is the target}, over each group of positions of
the task. For in-context bigrams these are

    in_context         second and later occurrences of a trigger
    global             tokens that are not triggers
    first_occurrence   a trigger seen for the first time

The value is None for a group that was not evaluated at this step (see TrainConfig.full_metrics_every) or has no
position in the batch, and for accuracies where targets are soft. Norms are Frobenius norms; a frozen matrix has no
gradient.

`recalls` has the three recalls of the paper, for the progress line and for adaptive checkpoints; `probes` measures them
and their variants on whole trajectories.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from induction_memory.errors import DivergedError, UnsupportedError, require
from induction_memory.experiment.constraints import Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.schedule import Keeper
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.field_docs import field_docs
from induction_memory.memory.recall import recall
from induction_memory.model.associations import associate
from induction_memory.model.memories import Memories, weights_of
from induction_memory.task.batch import Batch
from induction_memory.task.sampler import step_rng
from induction_memory.training.evaluation import Clamps, Evaluation, trained_positions
from induction_memory.training.forward import evaluate
from induction_memory.training.optimizer import reset, update, zero_state


@field_docs
@dataclass(frozen=True)
class Metrics:
    """One line of metrics.jsonl."""

    step: int
    """Number of updates before this step."""
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
    """The paper's name of a matrix -> its norm; the next two fields have the same keys."""
    gradient_norms: Mapping[str, float | None] = field(default_factory=dict)
    recalls: Mapping[str, float] = field(default_factory=dict)
    """Measured only for adaptive checkpoints; `probes` measures recalls on the trajectory."""

    def row(self) -> dict[str, Any]:
        """Column -> number, or None for what was not measured or is not finite."""
        flat: dict[str, float | None] = {"step": self.step, "loss": self.loss}
        flat |= {f"loss_{group}": value for group, value in self.losses.items()}
        flat |= {f"accuracy_{group}": value for group, value in self.accuracies.items()}
        flat["out_of_distribution_accuracy"] = self.out_of_distribution_accuracy
        named = {"weight_norm": self.weight_norms, "gradient_norm": self.gradient_norms, "recall": self.recalls}
        flat |= {f"{kind}_{name}": value for kind, values in named.items() for name, value in values.items()}
        return {name: None if value is None or not math.isfinite(value) else value for name, value in flat.items()}


def watched_values(row: Mapping[str, Any], main: str) -> dict[str, float]:
    """The values of a row that adaptive checkpoints follow: the accuracy of the main group and the recalls, if
    measured."""
    measured = {name: value for name, value in row.items() if value is not None}
    return {n: value for n, value in measured.items() if n == f"accuracy_{main}" or n.startswith("recall_")}


def accuracy(evaluation: Evaluation, batch: Batch, group: str) -> float | None:
    """How often the likeliest output is the target, over a group; None where targets are soft."""
    return None if batch.soft else class_mean(evaluation.correct, batch.group(group), evaluation.evaluated)


def class_mean(
    values: Shaped[Tensor, "batch pos"],
    members: Bool[Tensor, "batch pos"],
    evaluated: Bool[Tensor, "batch pos"],
) -> float | None:
    """Mean over a group of positions; None if it is empty or was not fully evaluated."""
    members = members.to(values.device)
    if not bool(members.any()) or bool((members & ~evaluated).any()):
        return None
    return float(values[members].double().mean())


@torch.no_grad()
def recalls(model: nn.Module, task: Any) -> dict[str, float]:
    """Recall of W_K1 and, with two or more layers, of W_K2 and W_O2; empty for sequences of one token.

    With several heads, or pairs of heads, the best value counts. A memory that the task does not name, or with several
    targets per item, is left out.
    """
    if task.length < 2:
        return {}
    m, found = Memories(weights_of(model)), {}
    for name in ["W_K1"] + ["W_K2", "W_O2"] * (m.n_layers > 1):
        try:
            found[name] = float(recall(associate(m, name, task=task)).max())
        except UnsupportedError:
            continue
    return found


@dataclass(frozen=True)
class Start:
    """Where a run begins or continues. The model itself holds the weights."""

    step: int = 0
    """The next update."""
    first_step: int = 0
    """Where the run began: 0, or the step at which a branch left its parent."""
    optimizer: Mapping[str, Tensor] | None = None
    """The optimiser's state before that update; None means all zero."""
    reference: Mapping[str, float] = field(default_factory=dict)
    """The watched values at the last checkpoint, for adaptive checkpoints."""


@field_docs
@dataclass(frozen=True)
class Snapshot:
    """One step of a run: what was measured, and the live model before its update.

    >>> import induction_memory as im
    >>> from induction_memory.training.loop import train
    >>> task, model = im.BigramTask(length=8), im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> [(now.step, now.checkpoint) for now in train(task, model, im.experiment.TrainConfig(steps=2, batch_size=4))]
    [(0, True), (1, True), (2, True)]
    """

    step: int
    """Updates done so far."""
    metrics: Metrics
    """Measured on the fresh batch of this step."""
    checkpoint: bool
    """Whether this step is kept as a checkpoint."""
    model: nn.Module
    """The model itself, not a copy: the next snapshot changes it."""
    optimizer: Mapping[str, Tensor]
    """The optimiser's state itself, not a copy: the next snapshot changes it."""

    def parameters(self) -> dict[str, Tensor]:
        """A copy of every parameter, by its name in the model."""
        return {name: value.detach().cpu().clone() for name, value in self.model.named_parameters()}


def train(
    task: Any,
    model: nn.Module,
    config: TrainConfig,
    *,
    start: Start | None = None,
    grafts: Mapping[Graft, Tensor] | None = None,
) -> Iterator[Snapshot]:
    """Train `model` in place, from `start`; yields a snapshot for each step, the final one included.

    `grafts` holds the matrix of each rule of `config.grafts`, in TransformerLens's orientation.
    """
    start, grafts = start or Start(), grafts or {}
    model_config: Any = getattr(model, "model_config", None)
    run, parameters = RunConfig(task, model_config, config), dict(model.named_parameters())
    names = run.model.parameters
    for rule in config.graft_rules:
        require(rule in grafts, "grafts", "a matrix for each of train.grafts", f"none for {rule}")
        wanted, got = tuple(parameters[names[rule.name]].shape), tuple(grafts[rule].shape)
        require(got == wanted, "train.grafts", f"a matrix of shape {wanted}", f"{got} for {rule}")
    trained = {name: parameters[names[name]] for name in run.model.trained_names}
    optimizer = zero_state(run, parameters)
    if start.optimizer is not None:
        for name, value in optimizer.items():
            value.copy_(start.optimizer[name])
    keeper = Keeper(config.checkpoint_rule, start.first_step, dict(start.reference))
    try:
        for step in range(start.step, config.steps + 1):
            for rule in config.graft_rules:
                if rule.start == step:
                    parameters[names[rule.name]].data.copy_(grafts[rule])
                    if rule.name in trained:
                        reset(config.optimizer, optimizer, [names[rule.name]])
            frozen = {names[rule.name] for rule in config.freezes if rule.holds(step)}
            for name, parameter in trained.items():
                parameter.requires_grad_(names[name] not in frozen)
            metrics, gradients = _measure(run, model, step, trained)
            kept = keeper.keeps(step, watched_values(metrics.row(), metrics.main))
            yield Snapshot(step, metrics, kept, model, optimizer)
            if step < config.steps:
                moving = {names[n]: p.detach() for n, p in trained.items() if names[n] not in frozen}
                update(config, step, moving, gradients, optimizer)
                reset(config.optimizer, optimizer, frozen)
    finally:
        for parameter in trained.values():
            parameter.requires_grad_(True)


def _measure(
    run: RunConfig, model: nn.Module, step: int, trained: Mapping[str, Tensor]
) -> tuple[Metrics, dict[str, Tensor]]:
    """The metrics of a step and the gradients of its update, from one pass over its batch."""
    config, task, last = run.train, run.task, step == run.train.steps
    kinds = {rule.kind for rule in config.clamp_rules if rule.start <= step}
    clamps = Clamps("previous-token" in kinds, "induction" in kinds)
    how: dict[str, Any] = {"clamps": clamps, "micro_batch": config.micro_batch}
    full = step % config.full_metrics_every == 0 or last
    batch = task.sample(config.batch_size, step_rng(config.data_seed, step))
    seen = evaluate(model, batch, config.loss, gradients=not last, full_metrics=full, **how)
    if not math.isfinite(seen.loss) and bool(trained_positions(batch, config.loss).any()):
        raise DivergedError(f"the loss is {seen.loss} at step {step}; train.learning_rate may be too large")

    beyond, second = None, run.evaluation_task
    if second is not None and (step % config.out_of_distribution_every == 0 or last):
        other = second.sample(config.out_of_distribution_batch, step_rng(config.eval_seed, step))
        beyond = accuracy(evaluate(model, other, "main", gradients=False, **how), other, other.main)
    losses, accuracies = {}, {}
    for group, where in batch.groups.items():
        losses[group] = class_mean(seen.nll, where, seen.evaluated)
        accuracies[group] = accuracy(seen, batch, group)
    weight_norms, gradient_norms = {}, {}
    for name, parameter in trained.items():
        gradient = seen.gradients.get(run.model.parameters[name])
        weight_norms[name] = float(parameter.detach().norm())
        gradient_norms[name] = None if gradient is None else float(gradient.norm())
    recalled = {} if config.checkpoint_rule.adaptive_from is None else recalls(model, task)
    found = losses, accuracies, beyond, weight_norms, gradient_norms, recalled
    return Metrics(step, seen.loss, batch.main, *found), seen.gradients
