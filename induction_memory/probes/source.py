"""What can be probed: a trajectory, a model, or weights stacked over steps; one reading of the three.

trajectory   the weights of all steps, its own task and evaluation seed; the model of any step
model        one step, numbered 0; any TransformerLens model, by the names HookedTransformer and Bridge share
mapping      TransformerLens's parameter name -> tensor with a leading step axis (none on what never moves)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.probes.stack import Lazy, Stack, UnsupportedError, at_steps, has_step_axis
from induction_memory.runner.parameters import parameters
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch, sample, step_rng
from induction_memory.trajectory.trajectory import Stacks, Trajectory

SEQUENCES = 64  # size of the evaluation batch when none is given
Steps = Literal["all"] | int | Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Source:
    """Steps, weights and models of whatever is probed."""

    steps: Int[np.ndarray, " step"]
    """The training steps."""
    stack: Stack
    """Their weights."""
    model_at: Callable[[int], nn.Module] | None = None
    """The model of a step, where there is one."""
    eval_seed: int = TrainConfig.eval_seed
    """Seed of the evaluation batch."""
    trajectory: Trajectory | None = field(default=None, repr=False)
    """The trajectory behind it, or None."""

    @property
    def task(self) -> BigramTask | None:
        return self.stack.task

    def model(self, step: int) -> nn.Module:
        if self.model_at is None:
            raise UnsupportedError("needs a model to run, stacked weights alone do not make one")
        return self.model_at(step)

    def batch(self) -> Batch:
        """The evaluation batch: SEQUENCES sequences of the task from the run's evaluation seed."""
        return sample(self.stack.require_task(), SEQUENCES, step_rng(self.eval_seed, 0))


def read(source: Any, *, steps: Steps = "all", task: BigramTask | None = None) -> Source:
    """The Source of a trajectory, a model or a mapping of stacked weights, at the steps that are asked for."""
    require(task is None or isinstance(task, BigramTask), "task", "a BigramTask", repr(task))
    if isinstance(source, Source):
        return source
    if isinstance(source, nn.Module):
        _require_only_step(steps)
        return Source(np.array([0]), Stack(model_weights(source), 1, task), lambda _: source)
    if isinstance(source, Mapping):
        return _read_mapping(source, steps, task)
    if isinstance(source, Trajectory):
        return _read_trajectory(source, steps, task)
    allowed = "a trajectory (as im.load gives it), a TransformerLens model or stacked weights"
    got = repr(source) if isinstance(source, str | int | float | None) else f"a {type(source).__name__}"
    raise InputError(f"source: expected {allowed}, got {got}")


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """A model's weights by HookedTransformer's parameter names, read by the accessors that Bridge has too.

    Of feed-forwards only linear and ReLU ones: they alone are memories that a probe reads.
    """
    weights, cfg = parameters(model), cast(Any, model.cfg)
    readable = cfg.act_fn == "relu"
    return {n: w for n, w in weights.items() if readable or ".mlp." not in n or n.endswith("W_F")}


def chosen_steps(available: Int[np.ndarray, " step"], steps: Steps) -> Int[np.ndarray, " chosen"]:
    """The positions in `available` of the steps that are asked for."""
    if isinstance(steps, str):
        require(steps == "all", "steps", "'all' or a list of steps", repr(steps))
        return np.arange(len(available))
    wanted = np.atleast_1d(np.asarray(steps))
    require(wanted.size > 0, "steps", "'all' or one or more steps", "none")
    missing = [step for step in wanted.tolist() if step not in available]
    expected = f"steps that are stored ({available[0]} to {available[-1]}, {len(available)} of them)"
    require(not missing, "steps", expected, ", ".join(map(str, missing)))
    return np.searchsorted(available, np.unique(wanted))


def _require_only_step(steps: Steps) -> None:
    only = isinstance(steps, str) or np.array_equal(np.atleast_1d(np.asarray(steps)), [0])
    require(only, "steps", "'all' for a single model", steps)


def _read_mapping(weights: Mapping[str, Tensor], steps: Steps, task: BigramTask | None) -> Source:
    lengths = {len(weight) for name, weight in weights.items() if has_step_axis(name, weight)}
    require(len(lengths) <= 1, "weights", "the same number of steps in each", sorted(lengths))
    available = np.arange(lengths.pop() if lengths else 1)
    rows = chosen_steps(available, steps)
    chosen = weights if len(rows) == len(available) else at_steps(weights, rows)
    initial = {name: weight[0] if has_step_axis(name, weight) else weight for name, weight in weights.items()}
    return Source(available[rows], Stack(chosen, len(rows), task, initial))


def _read_trajectory(run: Trajectory, steps: Steps, task: BigramTask | None) -> Source:
    run.require_steps()
    rows = chosen_steps(run.steps, steps)
    chosen = run.steps[rows]
    every = Stacks(run, None if len(rows) == len(run.steps) else chosen.tolist())
    stack = Stack(Lazy(tuple(every), every.__getitem__), len(rows), task or _task_of(run), run.initial())
    return Source(chosen, stack, lambda step: run.model(int(step)), _eval_seed_of(run), run)


def _task_of(run: Trajectory) -> BigramTask | None:
    """The task of a run; None for one that was imported without."""
    try:
        return run.task
    except InputError:
        return None


def _eval_seed_of(run: Trajectory) -> int:
    """The run's evaluation seed; the default one where it was not trained here."""
    try:
        return run.config.train.eval_seed
    except InputError:
        return TrainConfig.eval_seed
