"""Training as a generator of snapshots (Section 5): SGD on fresh batches, and nothing else in the loop.

At step n, for n = 0 ... steps:

    1. grafts declared for step n replace their matrices
    2. batch n is drawn from the stream (data_seed, n), independently of earlier steps
    3. the metrics of step n are measured on it, with the weights before update n
    4. the snapshot of step n is handed out: its weights are checkpoint n (step 0: the initialisation)
    5. update n changes the parameters that are not frozen (there is no update after the last step)

The weights of a step, the optimiser's state and the step's number are the whole state of a run: started from them, the
loop continues with the same bits.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from induction_memory.errors import DivergedError, require
from induction_memory.experiment.constraints import Graft, clamped_kinds, frozen_names
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.schedule import Keeper, learning_rate
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.field_docs import field_docs
from induction_memory.task.sampler import step_rng
from induction_memory.training.clamps import Clamps
from induction_memory.training.evaluation import trained_positions
from induction_memory.training.forward import evaluate
from induction_memory.training.metrics import Metrics, main_accuracy, measure
from induction_memory.training.optimizer import adamw_update, reset, sgd_update, zero_state
from induction_memory.training.recalls import recalls


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
