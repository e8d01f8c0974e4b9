"""What an intervention is done to: a model, or some or all steps of a trajectory, with sequences to run it on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from transformer_lens import HookedTransformer

from induction_memory.errors import InputError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.build import build
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch, sample, step_rng
from induction_memory.trajectory.states import fill
from induction_memory.trajectory.trajectory import Trajectory

Steps = int | np.integer | Literal["all", "last"] | Sequence[int] | Sequence[np.integer] | np.ndarray | None
SEQUENCES, SEQUENCES_A_STEP = 64, 16  # of the evaluation batch when none is given: for one step, for each of several


@dataclass(frozen=True, eq=False)
class Subject:
    """One model at one step."""

    model: HookedTransformer
    step: int | None = None
    """The step of its trajectory; None for a model on its own."""
    initial: HookedTransformer | None = None
    """The same model before training, where it is known."""


def subjects(source: Any, step: Steps = None, initial: HookedTransformer | None = None) -> Iterator[Subject]:
    """The model itself, or that of each step asked for (the last when not said).

    All steps of a trajectory are one model whose weights change: use each before asking for the next.
    """
    if isinstance(source, Trajectory):
        chosen = chosen_steps(source, step)
        model, weights = build(source.model_config), source.initial()
        if initial is None and weights is not None:
            initial = build(source.model_config)
            fill(initial, weights)
        for one in chosen:
            fill(model, source.state(one))
            yield Subject(model, one, initial)
        return
    require(hasattr(source, "run_with_hooks"), "model", "a HookedTransformer", type(source).__name__)
    require(step is None, "step", "none: this is a model, not a trajectory", step)
    yield Subject(source, None, initial)


def chosen_steps(run: Trajectory, step: Steps) -> list[int]:
    """The stored steps that `step` asks for: one, several, all, or the last."""
    run.require_steps()
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), "step", "a stored step, a list of them, 'last' or 'all'", repr(step))
        return [int(s) for s in (run.steps if step == "all" else run.steps[-1:])]
    wanted = np.atleast_1d(np.asarray(step)).tolist()
    require(len(wanted) > 0, "step", "at least one", "none")
    return [run.resolve(one) for one in wanted]


def task_of(source: Any, task: BigramTask | None = None) -> BigramTask:
    """The task given, or that of the trajectory."""
    if task is not None:
        return task
    if isinstance(source, Trajectory):
        return source.task
    raise InputError("task: expected the task of the sequences (a model alone does not know it), got none")


def several(source: Any, step: Steps) -> bool:
    """Whether more than one step of a trajectory is asked for."""
    return isinstance(source, Trajectory) and len(chosen_steps(source, step)) > 1


def batch_of(source: Any, batch: Batch | None, task: BigramTask | None = None, sequences: int = SEQUENCES) -> Batch:
    """The batch given, or sequences of the trajectory's task from its evaluation seed."""
    if batch is not None:
        return batch
    if task is None and not isinstance(source, Trajectory):
        raise InputError("batch: expected sequences of the task (a model alone does not know it), got none")
    seed = source.config.train.eval_seed if isinstance(source, Trajectory) else TrainConfig.eval_seed
    return sample(task_of(source, task), sequences, step_rng(seed, 0))


def with_step(table: pd.DataFrame, subject: Subject) -> pd.DataFrame:
    """The table with the step as its first column, where there is one."""
    if subject.step is not None:
        table.insert(0, "step", subject.step)
    return table
