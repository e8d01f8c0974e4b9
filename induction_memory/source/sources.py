"""Which weights, at which steps, on which sequences: how every analysis reads its source.

    a trajectory      some of its stored steps, its task, sequences from its evaluation seed; also its folder or name
    a series          some checkpoints that others trained (`im.revisions`), on random tokens repeated once
    a model           any TransformerLens model with its hooks: one step, numbered 0
    stacked weights   HookedTransformer's parameter name -> tensor, with a leading step axis if the parameter changes

`subject` resolves the steps, draws or checks the sequences, and makes the runner of each step. A trajectory's steps run
from weights and configuration, without TransformerLens. Stacked weights alone can be read but not run.

Weights of some steps as a probe reads them: their memories and associations, with the task they were trained on.

Which steps of a trajectory, of a series or of a stack of weights are meant: one, several, all, or the last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, UnsupportedError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_integer
from induction_memory.memory.association import Association
from induction_memory.model.architecture import Architecture
from induction_memory.model.associations import associate, required
from induction_memory.model.memories import Memories, has_step_axis
from induction_memory.runner.choice import runner
from induction_memory.runner.recording import Runner, Via
from induction_memory.runner.support import of_settings, unreadable
from induction_memory.runner.weights import parameters
from induction_memory.task.batch import Batch, within_context
from induction_memory.task.protocol import Task, ask
from induction_memory.task.sampler import step_rng, with_counts
from induction_memory.terminal import track
from induction_memory.trajectory.kept_results import key_of
from induction_memory.trajectory.search import find, is_series
from induction_memory.trajectory.series import Pairs, Revisions, revisions
from induction_memory.trajectory.trajectory import Stacks, Trajectory, load


@field_docs
@dataclass(frozen=True)
class Stack(Memories):
    """The weights of some steps, with the task if it is known. Axes are those of `Memories`: step, then heads."""

    n_steps: int = 1
    """How many steps."""
    task: Task | None = None
    """The task, for probes that need its tables."""
    initial: Mapping[str, Tensor] | None = None
    """The weights at initialisation, without a step axis, if they are known."""

    @property
    def length(self) -> int:
        """T: the number of positions that the task uses, or that the model has."""
        self.require_weights("pos_embed.W_pos", "learned positions")
        n_ctx = self.weights["pos_embed.W_pos"].shape[-2]
        return n_ctx if self.task is None else min(n_ctx, self.task.length)

    def association(self, what: str) -> Association:
        """What a matrix associates, by the names of `model/names.py`: `W_K2`, `W_K1[0:64]_causal` ..."""
        return associate(self, what, task=self.task)

    def require_task(self) -> Task:
        return required(self.task)

    def ask(self, capability: str) -> Any:
        """What the task offers, such as `bigram`; an error if the task is not known or offers none."""
        return ask(required(self.task), capability)

    def require_initial(self) -> Mapping[str, Tensor]:
        if self.initial is None:
            raise UnsupportedError("needs the weights at initialisation, which only a trajectory can know")
        return self.initial

    def at(self, steps: slice) -> "Stack":
        """The same source at some of its steps (the positions in the stack, not the training steps)."""
        n_steps = len(range(*steps.indices(self.n_steps)))
        return Stack(at_steps(self.weights, steps), n_steps, self.task, self.initial, refusal=self.refusal)


@dataclass(frozen=True)
class Lazy(Mapping[str, Tensor]):
    """Weights by name, each read when it is first asked for."""

    names: tuple[str, ...]
    read: Callable[[str], Tensor]
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        if name not in self.kept:
            self.kept[name] = self.read(name)
        return self.kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def at_steps(weights: Mapping[str, Tensor], rows: slice | Int[np.ndarray, " step"]) -> Lazy:
    """Some steps of stacked weights; a weight without a step axis is left as it is."""

    def read(name: str) -> Tensor:
        weight = weights[name]
        return weight[rows] if has_step_axis(name, weight) else weight

    return Lazy(tuple(weights), read)


def number_of_steps(weights: Mapping[str, Tensor]) -> int:
    """How many steps are stacked."""
    lengths = {len(weight) for name, weight in weights.items() if has_step_axis(name, weight)}
    require(len(lengths) <= 1, "weights", "the same number of steps in each", sorted(lengths))
    return lengths.pop() if lengths else 1


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model from which memories are read, by HookedTransformer's names.

    Only linear and ReLU feed-forwards are included.
    """
    from induction_memory.model.building import MLP

    cfg: Any = model.cfg
    replaced = any(type(module) is MLP and module.act_fn is not F.relu for module in model.modules())
    readable = is_plain_relu(cfg.act_fn, getattr(cfg, "gated_mlp", False)) and not replaced
    return {n: w for n, w in parameters(model).items() if readable or ".mlp." not in n or n.endswith("W_F")}


def is_plain_relu(act_fn: str | None, gated: bool) -> bool:
    """Whether a feed-forward is relu(x W_in) W_out."""
    return act_fn == "relu" and not gated


Steps = int | np.integer | Literal["all", "last"] | Sequence[int] | Sequence[np.integer] | np.ndarray | None


def chosen_steps(run: Trajectory, step: Steps, field: str = "step") -> list[int]:
    """The stored steps that `step` asks for, in the order of training: one, several, all, or the last."""
    run.require_steps()
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), field, "a stored step, a list of them, 'last' or 'all'", repr(step))
        return [int(s) for s in (run.steps if step == "all" else run.steps[-1:])]
    wanted = np.atleast_1d(np.asarray(step)).tolist()
    require(len(wanted) > 0, field, "at least one step", "none")
    return sorted({run.resolve(one) for one in wanted})


def chosen_checkpoints(series: Revisions, step: Steps, field: str) -> Revisions:
    """The checkpoints that `step` asks for: one, several, all, or the last."""
    if isinstance(series, Pairs):
        require(isinstance(step, str) and step == "all", field, "'all' for pairs of steps and models", repr(step))
        return series
    if isinstance(step, str) or step is None:
        require(step in (None, "last", "all"), field, "a stored step, a list of them, 'last' or 'all'", repr(step))
        return series if step == "all" else series.at(int(series.steps[-1]))
    return series.at([int(one) for one in np.atleast_1d(np.asarray(step)).tolist()])


def chosen_positions(available: int, step: Steps, field: str) -> Int[np.ndarray, " step"]:
    """The positions in a stack that `step` asks for."""
    if step is None or isinstance(step, str):
        require(step in (None, "all", "last"), field, "'all' or positions in the stack", repr(step))
        return np.arange(available) if step == "all" else np.array([available - 1])
    wanted = np.unique(np.asarray(step)).tolist()
    require(len(wanted) > 0, field, "at least one step", "none")
    for one in wanted:
        require(one in range(available), field, f"0 to {available - 1} (positions in the stack)", one)
    return np.array(wanted)


Source = Trajectory | Revisions | nn.Module | Mapping[str, Tensor] | str | Path
Sequences = Batch | Int[Tensor, "batch pos"] | None
SEQUENCES, SEQUENCES_PER_STEP = 64, 16  # drawn when no batch is given: for one step, and for each of several steps


@field_docs
@dataclass(frozen=True, eq=False)
class Subject:
    """A model, some steps of a trajectory, or stacked weights, with the sequences to run them on.

    >>> subject("induction-small", step=[0, 600], sequences=2).batch.tokens.shape
    torch.Size([2, 256])
    """

    name: str
    steps: Int[np.ndarray, " step"]
    """The training steps; the single step 0 for a model."""
    source: Trajectory | Revisions | nn.Module | Mapping[str, Tensor]
    known_task: Any
    """The task, or None."""
    given: Sequences
    drawn: int
    """How many sequences are drawn when none are given."""
    given_initial: Mapping[str, Tensor] | nn.Module | None = None
    via: Via | None = None

    @property
    def run(self) -> Trajectory | None:
        """The trajectory behind it, or None."""
        return self.source if isinstance(self.source, Trajectory) else None

    @property
    def series(self) -> Revisions | None:
        """The series of others' checkpoints behind it, or None."""
        return self.source if isinstance(self.source, Revisions) else None

    @property
    def last(self) -> int | None:
        """The last step; None if it is not known yet (an iterator of models)."""
        return int(self.steps[-1]) if len(self.steps) else None

    @property
    def task(self) -> Any:
        """The task; an error if it is not known."""
        if self.known_task is None:
            raise InputError("task: expected the task of the sequences (a model alone does not know it), got none")
        return self.known_task

    @cached_property
    def batch(self) -> Any:
        """The sequences on the model's device: those given, or drawn from the task with the run's evaluation seed."""
        found = self._sequences()
        if not isinstance(self.source, nn.Module):
            return found
        return found.to(next(self.source.parameters()).device)

    def _sequences(self) -> Any:
        if self.given is not None:
            given = self.given if isinstance(self.given, Batch) else batch_of_tokens(self.given)
            self._require_tokens(given.tokens)
            return given
        if self.series is not None:
            config = self.series.config()
            return batch_of_tokens(within_context(config.vocab_size, config.max_position_embeddings, self.drawn))
        if self.known_task is None:
            raise InputError("batch: expected sequences of the task (a model alone does not know it), got none")
        return self.known_task.sample(self.drawn, step_rng(self.eval_seed, 0))

    def _require_tokens(self, tokens: Int[Tensor, "batch pos"]) -> None:
        """Refuse tokens that the model does not have."""
        config: Any = self.source.model_config if isinstance(self.source, Trajectory) else None
        size = getattr(config or getattr(self.source, "cfg", None), "d_vocab", None)
        if size is not None and tokens.numel():
            low, high = int(tokens.min()), int(tokens.max())
            require(low >= 0 and high < size, "batch", f"tokens from 0 to {size - 1}", f"{low} to {high}")

    @property
    def eval_seed(self) -> int:
        """Seed of the evaluation batch: the run's, or the default one."""
        try:
            return TrainConfig.eval_seed if self.run is None else self.run.config.train.eval_seed
        except InputError:
            return TrainConfig.eval_seed

    @cached_property
    def initial(self) -> Mapping[str, Tensor] | nn.Module | None:
        """The weights before training; None if they are not known."""
        if self.given_initial is not None or self.run is None:
            return self.given_initial
        return self.run.initial()

    @cached_property
    def stack(self) -> Stack:
        """The weights of all its steps, each read when asked for."""
        if isinstance(self.source, Trajectory):
            every = len(self.steps) == len(self.source.steps)
            stacks = Stacks(self.source, None if every else self.steps.tolist())
            config = self.source.model_config
            readable = not isinstance(config, Architecture) or is_plain_relu(config["act_fn"], config["gated_mlp"])
            weights = Lazy(tuple(name for name in stacks if readable or ".mlp." not in name), stacks.__getitem__)
            refusal = of_settings(dict(config.settings)) if isinstance(config, Architecture) else None
            known = {"task": self.known_task, "initial": self.source.initial(), "refusal": refusal}
            return Stack(weights, n_steps=len(self.steps), **known)
        if isinstance(self.source, nn.Module):
            return Stack(model_weights(self.source), task=self.known_task, refusal=unreadable(self.source))
        if isinstance(self.source, Revisions):
            raise UnsupportedError("reads one checkpoint of a series at a time, and stacks no weights")
        weights = self.source
        chosen = weights if len(self.steps) == number_of_steps(weights) else at_steps(weights, self.steps)
        return Stack(chosen, n_steps=len(self.steps), task=self.known_task)

    def runner(self, step: int | np.integer | None = None) -> Runner:
        """The runner of a step (the last one when not given)."""
        if isinstance(self.source, nn.Module):
            return runner(self.source, via=self.via)
        if self.series is not None:
            return runner(self.series.model(None if step is None else int(step)), via=self.via)
        if self.run is None:
            raise UnsupportedError("needs a model to run, stacked weights alone do not make one")
        chosen = int(self.steps[-1] if step is None else step)
        return runner(self.run.state(chosen), self.run.model_config, via=self.via)

    def model(self, step: int | np.integer | None = None) -> Any:
        """The TransformerLens model of a step."""
        if isinstance(self.source, nn.Module):
            return self.source
        if self.series is not None:
            return self.series.model(None if step is None else int(step))
        if self.run is None:
            raise UnsupportedError("needs a model to run, stacked weights alone do not make one")
        return self.run.model(int(self.steps[-1] if step is None else step))

    def each(self) -> Iterator[tuple[int, Runner]]:
        """Step and runner, one after another. For a series it is one model whose weights change."""
        if self.series is not None:
            for step, model in self.series.refilled():
                yield step, runner(model, via=self.via)
            return
        for step in track(self.steps.tolist(), "steps"):
            yield step, self.runner(step)

    def tables(
        self, measure: Callable[[int, Runner], dict[str, pd.DataFrame]], settings: Mapping[str, Any]
    ) -> Iterator[tuple[int, dict[str, pd.DataFrame]]]:
        """Step and the tables that `measure` makes of the step and its runner.

        For a series, the tables of each step are kept on the disk under the `settings` that they depend on.
        """
        if self.series is None:
            yield from ((step, measure(step, one)) for step, one in self.each())
            return
        at = self.series
        yield from at.results(lambda step, model: measure(step, runner(model, via=self.via)), key=key_of(settings))

    def only(self) -> Runner:
        """The runner of the one step that was asked for."""
        require(len(self.steps) == 1, "step", "one step", len(self.steps))
        return self.runner()

    def labelled(self, table: pd.DataFrame, step: int) -> pd.DataFrame:
        """The table with the step as its first column, for a trajectory or a series."""
        if self.run is not None or self.series is not None:
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
    field: str = "step",
) -> Subject:
    """Read a source: a trajectory or a series, its folder or the name of a shipped one, a model, or stacked weights.

    `step` is a stored step, several, "all", or the last when not given. `batch` are the sequences, also as a tensor of
    tokens. Without them `sequences` are drawn from the run's task, or from `task`: 64, or 16 for several steps.
    `initial` are the weights before training, which a model does not keep. `via` is "hooks" or "fast". Errors about the
    step call it `field`.

    >>> subject("induction-small", step="all").steps
    array([  0, 100, 200, 300, 600])
    """
    require(task is None or isinstance(task, Task), "task", "a task", repr(task))
    tokens = isinstance(batch, Tensor) and batch.dim() == 2 and not batch.is_floating_point() and len(batch) > 0
    allowed = "a Batch, or whole numbers of shape [batch, pos]"
    require(batch is None or isinstance(batch, Batch) or tokens, "batch", allowed, _described(batch))
    if sequences is not None:
        require_integer(sequences, "sequences", 1, None)
    opened = opened_folder(source) if isinstance(source, str | Path) else source
    if isinstance(opened, Subject):
        return opened
    if isinstance(opened, Revisions):
        chosen = chosen_checkpoints(opened, step, field)
        drawn = sequences or (SEQUENCES if len(chosen.steps) == 1 else SEQUENCES_PER_STEP)
        return Subject(chosen.name, chosen.steps, chosen, task, batch, drawn, initial, via)
    if isinstance(opened, Trajectory):
        steps = chosen_steps(opened, step, field)
        drawn = sequences or (SEQUENCES if len(steps) == 1 else SEQUENCES_PER_STEP)
        return Subject(opened.name, np.array(steps), opened, task or _task_of(opened), batch, drawn, initial, via)
    if isinstance(opened, Mapping):
        require(bool(opened), "source", "weights by name", "none")
        steps = chosen_positions(number_of_steps(opened), step, field)
        return Subject("weights", steps, opened, task, batch, sequences or SEQUENCES, initial, via)
    if not isinstance(opened, nn.Module) or not hasattr(opened, "run_with_hooks"):
        allowed = "a trajectory, a series, the folder of either, a TransformerLens model or stacked weights"
        raise InputError(f"source: expected {allowed}, got {_described(opened)}")
    single = (
        step is None or (isinstance(step, str) and step in ("all", "last")) or np.array_equal(np.atleast_1d(step), [0])
    )
    require(single, field, "none: this is a model, not a trajectory", step)
    return Subject("model", np.array([0]), opened, task, batch, sequences or SEQUENCES, initial, via)


def opened_folder(path: str | Path) -> Trajectory | Revisions:
    """What a folder or a name stands for: a trajectory, or a series of checkpoints that others trained.

    >>> opened_folder("induction-small")
    Trajectory('induction-small': 5 steps from 0 to 600)
    """
    folder = find(path)
    return revisions(folder) if is_series(folder) else load(folder)


def batch_of_tokens(tokens: Int[Tensor, "batch pos"]) -> Any:
    """Any sequences as a batch. A position is in context if its token and the next one occurred as a pair before.

    >>> import torch
    >>> batch_of_tokens(torch.tensor([[1, 2, 3, 1, 2, 4]])).groups["in_context"]
    tensor([[False, False, False,  True, False]])
    """
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


def _described(source: Any) -> str:
    if isinstance(source, Tensor):
        return f"{source.dtype} of shape {tuple(source.shape)}"
    return repr(source) if isinstance(source, int | float | None) else f"a {type(source).__name__}"
