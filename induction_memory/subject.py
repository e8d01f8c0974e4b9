"""Which weights, at which steps, on which sequences: the one reading of what every analysis is given.

    a trajectory      some of its stored steps, its task, sequences from its evaluation seed; also its folder or name
    a model           any TransformerLens model, as it was handed over; the sequences must be given

`subject` resolves the steps, draws or checks the sequences, and makes the runner of each step. A trajectory's steps run
from weights and configuration, without TransformerLens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.runner.choice import runner
from induction_memory.runner.recording import Runner, Via
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task
from induction_memory.task.sampler import step_rng, with_counts
from induction_memory.trajectory.trajectory import Trajectory, load

Source = Trajectory | nn.Module | str | Path
Steps = int | np.integer | Literal["all", "last"] | Sequence[int] | Sequence[np.integer] | np.ndarray | None
Sequences = Batch | Int[Tensor, "batch pos"] | None
SEQUENCES, SEQUENCES_PER_STEP = 64, 16  # of the evaluation batch when none is given: for one step, for each of several


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, or some steps of a trajectory, with the sequences to run them on."""

    name: str
    steps: Int[np.ndarray, " step"]
    """The training steps; the single step 0 for a model."""
    run: Trajectory | None
    model: nn.Module | None
    known_task: Any
    given: Sequences
    drawn: int
    """How many sequences are drawn when none are given."""
    given_initial: Mapping[str, Tensor] | nn.Module | None = None
    via: Via | None = None

    @property
    def task(self) -> Any:
        """The task; an error where nothing says which."""
        if self.known_task is None:
            raise InputError("task: expected the task of the sequences (a model alone does not know it), got none")
        return self.known_task

    @cached_property
    def batch(self) -> Any:
        """The sequences: those given, or drawn from the task with the run's evaluation seed."""
        if isinstance(self.given, Batch):
            return self.given
        if self.given is not None:
            return batch_of_tokens(self.given)
        if self.known_task is None:
            raise InputError("batch: expected sequences of the task (a model alone does not know it), got none")
        seed = TrainConfig.eval_seed if self.run is None else _eval_seed(self.run)
        return self.known_task.sample(self.drawn, step_rng(seed, 0))

    @cached_property
    def initial(self) -> Mapping[str, Tensor] | nn.Module | None:
        """The weights before training, where they are known."""
        if self.given_initial is not None or self.run is None:
            return self.given_initial
        return self.run.state(int(self.run.steps[0]))

    def runner(self, step: int | np.integer | None = None) -> Runner:
        """What runs the model of a step (the last one when not given)."""
        if self.run is None:
            assert self.model is not None
            return runner(self.model, via=self.via)
        chosen = int(self.steps[-1] if step is None else step)
        return runner(self.run.state(chosen), self.run.model_config, via=self.via)

    def each(self) -> Iterator[tuple[int, Runner]]:
        """Step and runner, one after another."""
        for step in self.steps.tolist():
            yield step, self.runner(step)

    def only(self) -> Runner:
        """The runner of the one step that was asked for."""
        require(len(self.steps) == 1, "step", "one step", len(self.steps))
        return self.runner()

    def labelled(self, table: pd.DataFrame, step: int) -> pd.DataFrame:
        """The table with the step as its first column, for a trajectory."""
        if self.run is not None:
            table.insert(0, "step", step)
        return table


def subject(
    source: Any,
    *,
    step: Steps = None,
    batch: Sequences = None,
    task: Any = None,
    sequences: int | None = None,
    initial: Mapping[str, Tensor] | nn.Module | None = None,
    via: Via | None = None,
) -> Subject:
    """Read a source: a trajectory, its folder or the name of a shipped one, or a model.

    `step` is a stored step, several, "all", or the last when not given. `batch` are the sequences, also as a tensor of
    tokens. Without them `sequences` are drawn from the run's task, or from `task`: 64, or 16 for several steps.
    `initial` are weights before training, for a model that does not keep them. `via` is "hooks" or "fast".
    """
    require(task is None or isinstance(task, Task), "task", "a task", repr(task))
    opened = load(source) if isinstance(source, str | Path) else source
    if isinstance(opened, Trajectory):
        steps = chosen_steps(opened, step)
        drawn = sequences or (SEQUENCES if len(steps) == 1 else SEQUENCES_PER_STEP)
        known = task or _task_of(opened)
        return Subject(opened.name, np.array(steps), opened, None, known, batch, drawn, initial, via)
    if not isinstance(opened, nn.Module) or not hasattr(opened, "run_with_hooks"):
        allowed = "a trajectory, its folder or a TransformerLens model"
        raise InputError(f"source: expected {allowed}, got {_described(opened)}")
    require(step is None, "step", "none: this is a model, not a trajectory", step)
    return Subject("model", np.array([0]), None, opened, task, batch, sequences or SEQUENCES, initial, via)


def chosen_steps(run: Trajectory, step: Steps) -> list[int]:
    """The stored steps that `step` asks for: one, several, all, or the last."""
    run.require_steps()
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), "step", "a stored step, a list of them, 'last' or 'all'", repr(step))
        return [int(s) for s in (run.steps if step == "all" else run.steps[-1:])]
    wanted = [int(one) for one in np.atleast_1d(np.asarray(step))]
    require(len(wanted) > 0, "step", "at least one", "none")
    return [run.resolve(one) for one in wanted]


def batch_of_tokens(tokens: Int[Tensor, "batch pos"]) -> Batch:
    """Any sequences as a batch: in context is each pair of tokens that has occurred before in its sequence."""
    require(tokens.shape[1] >= 2, "tokens", "2 or more per sequence", tokens.shape[1])
    tokens = tokens.long()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    pair = inputs * (tokens.max() + 1) + targets
    seen = (pair[:, :, None] == pair[:, None, :]).tril(-1).any(-1)
    none = tokens[:, :0]
    return with_counts(inputs, targets, 2 * seen.long(), none, none)


def _task_of(run: Trajectory) -> Any:
    """The task of a run; None for one that was imported without."""
    try:
        return run.task
    except InputError:
        return None


def _eval_seed(run: Trajectory) -> int:
    """The run's evaluation seed; the default one where it was not trained here."""
    try:
        return run.config.train.eval_seed
    except InputError:
        return TrainConfig.eval_seed


def _described(source: Any) -> str:
    return repr(source) if isinstance(source, int | float | None) else f"a {type(source).__name__}"
