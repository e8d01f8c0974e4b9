"""Training as a generator of snapshots (Section 5): SGD on fresh batches, and nothing else in the loop.

At step n, for n = 0 ... steps:

    1. grafts declared for step n replace their matrices
    2. batch n is drawn from the stream (data_seed, n), independently of earlier steps
    3. the metrics of step n are measured on it, with the weights before update n
    4. the snapshot of step n is handed out: its weights are checkpoint n (step 0: the initialisation)
    5. update n changes the parameters that are not frozen (there is no update after the last step)

The weights of a step, the optimiser's state and the step's number are the whole state of a run: started from them, the
loop continues with the same bits.

What each training step reports, measured on a fresh batch before it is used.

Means of -log p(target), and of 1{the likeliest output is the target}, over each group of positions of the task. For
in-context bigrams these are

    in_context         second and later occurrences of a trigger
    global             tokens that are not triggers
    first_occurrence   a trigger seen for the first time

A group that was not evaluated at this step (see TrainConfig.full_metrics_every), or that has no position in the batch,
is None; so is an accuracy where targets are soft. Norms are Frobenius norms; a frozen matrix has no gradient.

The three recalls of the paper (Section 5), computed quickly for the progress line and for adaptive checkpoints.

With several heads, or pairs of heads, the best value counts. `probes` measures these recalls and their variants on
whole trajectories.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from induction_memory.errors import DivergedError, UnsupportedError, require
from induction_memory.experiment.constraints import Graft, clamped_kinds, frozen_names
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.schedule import Keeper, learning_rate
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.field_docs import field_docs
from induction_memory.memory.recall import recall
from induction_memory.model.associations import associate
from induction_memory.model.memories import Memories, weights_of
from induction_memory.task.batch import Batch
from induction_memory.task.sampler import step_rng
from induction_memory.training.clamps import Clamps
from induction_memory.training.evaluation import Evaluation, trained_positions
from induction_memory.training.forward import evaluate
from induction_memory.training.optimizer import adamw_update, reset, sgd_update, zero_state


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


@torch.no_grad()
def recalls(model: nn.Module, task: Any) -> dict[str, float]:
    """Recall of W_K1 and, in a model of two or more layers, of W_K2 and W_O2; nothing for a sequence of one token.

    A memory that the task does not name, or whose items have several partners, is left out.
    """
    if task.length < 2:
        return {}
    m, found = Memories(weights_of(model)), {}
    for name in ["W_K1"] + ["W_K2", "W_O2"] * (m.n_layers > 1):
        try:
            a = associate(m, name, task=task)
        except UnsupportedError:
            continue
        if not a.several:
            found[name] = float(recall(a).max())
    return found


@dataclass(frozen=True)
class Start:
    """Where a run begins or continues; the weights are those of the model that is passed in."""

    step: int = 0
    """The next update."""
    first_step: int = 0
    """Where the run began: 0, or the step at which a branch left its parent."""
    optimizer: Mapping[str, Tensor] | None = None
    """The optimiser's state before that update; None: all zero."""
    reference: Mapping[str, float] = field(default_factory=dict)
    """The watched values at the last checkpoint, for adaptive checkpoints."""


@field_docs
@dataclass(frozen=True)
class Snapshot:
    """One step of a run: what was measured, and the live model before its update.

    >>> import induction_memory as im
    >>> from induction_memory.training.loop import train
    >>> task, model = im.BigramTask(length=8), im.build(im.ModelConfig(d_model=16, n_ctx=8), seed=0)
    >>> [(now.step, now.checkpoint) for now in train(task, model, im.TrainConfig(steps=2, batch_size=4))]
    [(0, True), (1, True), (2, True)]
    """

    step: int
    """Updates done so far."""
    metrics: Metrics
    """Measured on the fresh batch of this step."""
    checkpoint: bool
    """Whether the configuration asks to keep this step."""
    model: nn.Module
    """The model itself, not a copy: asking for the next snapshot changes it."""
    optimizer: Mapping[str, Tensor]
    """The optimiser's state itself, which changes too."""

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

    `grafts` holds the matrix of each rule of `config.grafts`, in the model's own orientation.
    """
    model_config: Any = model.model_config
    run = RunConfig(task, model_config, config)
    missing = [str(rule) for rule in config.graft_rules if rule not in (grafts or {})]
    require(not missing, "grafts", "a matrix for each of train.grafts", f"none for {', '.join(missing)}")
    return _steps(run, model, start or Start(), dict(grafts or {}))


def _steps(run: RunConfig, model: nn.Module, start: Start, grafts: dict[Graft, Tensor]) -> Iterator[Snapshot]:
    config, paper_names = run.train, run.model.parameters
    parameters = dict(model.named_parameters())
    trained = {name: parameters[paper_names[name]] for name in run.model.trained_names}
    optimizer = zero_state(config.optimizer, {paper_names[n]: p.detach() for n, p in trained.items()})
    if start.optimizer is not None:
        for name, value in optimizer.items():
            value.copy_(start.optimizer[name])
    keeper = Keeper(config.checkpoint_rule, start.first_step, dict(start.reference))
    try:
        for step in range(start.step, config.steps + 1):
            for rule in (rule for rule in grafts if rule.start == step):
                _graft(parameters[paper_names[rule.name]], grafts[rule], rule)
                if rule.name in trained:
                    reset(config.optimizer, optimizer, [paper_names[rule.name]])
            frozen = frozen_names(config.freezes, step)
            for name, parameter in trained.items():
                parameter.requires_grad_(name not in frozen)
            metrics, gradients = _look(run, model, step, trained)
            yield Snapshot(step, metrics, keeper.keeps(step, metrics.watched), model, optimizer)
            if step < config.steps:
                moving = {paper_names[n]: p for n, p in trained.items() if n not in frozen}
                _update(config, step, moving, gradients, optimizer)
                reset(config.optimizer, optimizer, (paper_names[name] for name in frozen))
    finally:
        for parameter in trained.values():
            parameter.requires_grad_(True)


def _look(
    run: RunConfig, model: nn.Module, step: int, trained: Mapping[str, Tensor]
) -> tuple[Metrics, dict[str, Tensor]]:
    """The metrics of a step and the gradients of its update, from one pass over its batch."""
    config, last = run.train, step == run.train.steps
    kinds = clamped_kinds(config.clamp_rules, step)
    clamps = Clamps("previous-token" in kinds, "induction" in kinds) if kinds else None
    batch = run.task.sample(config.batch_size, step_rng(config.data_seed, step))
    evaluation = evaluate(
        model,
        batch,
        config.loss,
        gradients=not last,
        clamps=clamps,
        micro_batch=config.micro_batch,
        full_metrics=step % config.full_metrics_every == 0 or last,
    )
    asked = bool(trained_positions(batch, config.loss).any())
    if asked and not math.isfinite(evaluation.loss):
        raise DivergedError(f"the loss is {evaluation.loss} at step {step}; train.learning_rate may be too large")
    metrics = measure(
        step,
        evaluation,
        batch,
        weights={name: parameter.detach() for name, parameter in trained.items()},
        gradients={name: evaluation.gradients.get(run.model.parameters[name]) for name in trained},
        out_of_distribution=_second_accuracy(run, model, step, clamps),
        recalls=recalls(model, run.task) if config.checkpoint_rule.adaptive_from is not None else {},
    )
    return metrics, evaluation.gradients


def _update(
    config: TrainConfig,
    step: int,
    moving: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    state: dict[str, Tensor],
) -> None:
    rate = learning_rate(
        step, config.steps, config.learning_rate, config.schedule, config.warmup, config.final_fraction
    )
    for name, parameter in moving.items():
        weights, gradient = parameter.detach(), gradients[name]
        if config.optimizer == "sgd":
            sgd_update(weights, gradient, state[f"momentum/{name}"], rate, config.momentum, config.weight_decay)
        else:
            count = state[f"count/{name}"].add_(1)
            first, second = state[f"first/{name}"], state[f"second/{name}"]
            adamw_update(weights, gradient, first, second, int(count), rate, config.betas, config.weight_decay)


@torch.no_grad()
def _graft(parameter: Tensor, matrix: Tensor, rule: Graft) -> None:
    wanted, got = tuple(parameter.shape), tuple(matrix.shape)
    require(got == wanted, "train.grafts", f"a matrix of shape {wanted}", f"{got} for {rule}")
    parameter.copy_(matrix)


def _second_accuracy(run: RunConfig, model: nn.Module, step: int, clamps: Clamps | None) -> float | None:
    """Accuracy on the main group of the second task; None at steps that do not measure it."""
    config, second = run.train, run.evaluation_task
    if second is None or (step % config.out_of_distribution_every and step != config.steps):
        return None
    batch = second.sample(config.out_of_distribution_batch, step_rng(config.eval_seed, step))
    evaluation = evaluate(model, batch, "main", gradients=False, clamps=clamps, micro_batch=config.micro_batch)
    return main_accuracy(evaluation, batch)
