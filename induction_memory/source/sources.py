"""Sources: weights at steps, and the sequences to run them on.

    a run             a trajectory, its folder or its name: weights and configuration, run without TransformerLens
    a series          checkpoints that somebody else trained (`im.revisions`), one model in memory at a time
    a model           any TransformerLens model with its hooks: one step, numbered 0
    stacked weights   HookedTransformer's parameter name -> tensor, with a leading step axis if the parameter changes

Each is a `Source`. `select` chooses steps and sequences; `measuring.py` loops over the steps and passes each to a
measure as an `At`. No analysis depends on the form of its source.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import InputError, UnsupportedError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.field_docs import field_docs
from induction_memory.fields import require_integer
from induction_memory.memory.association import Association
from induction_memory.model.associations import associate, required
from induction_memory.model.config import Architecture
from induction_memory.model.memories import LazyWeights, Memories, has_step_axis
from induction_memory.runner.choice import runner
from induction_memory.runner.recording import Runner, Via
from induction_memory.runner.weights import parameters
from induction_memory.source.elsewhere import Engine
from induction_memory.task.batch import Batch, within_context
from induction_memory.task.protocol import Task, ask
from induction_memory.task.sampler import step_rng, with_counts
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps, chosen_steps, find, is_series
from induction_memory.trajectory.series import revisions
from induction_memory.trajectory.trajectory import load

logger = logging.getLogger("induction_memory")

SEQUENCES, SEQUENCES_PER_STEP = 64, 16  # sequences drawn without a batch: for one step, and for each of several steps
Sequences = Batch | Int[Tensor, "batch pos"] | None
Weights = Mapping[str, Tensor]


@runtime_checkable
class Source(Protocol):
    """Weights at steps.

    >>> source = open_source("induction-small")
    >>> source.name, source.choose(-1)
    ('induction-small', [600])
    """

    @property
    def name(self) -> str: ...

    @property
    def steps(self) -> Int[np.ndarray, " step"]: ...

    @property
    def has_steps(self) -> bool:
        """Whether tables have a column `step`."""
        ...

    @property
    def task(self) -> Any:
        """The task; None if not known."""
        ...

    @property
    def keep(self) -> Path | None:
        """The folder in which results are kept, if any."""
        ...

    def choose(self, step: "Steps") -> list[int]:
        """The steps that `step` means, in the order of training."""
        ...

    def in_turn(self, steps: Sequence[int], size: int) -> Iterator[tuple[list[int], nn.Module | None]]:
        """The steps in groups of at most `size`; each with its model, if the source holds one model at a time."""
        ...

    def identity(self, step: int) -> str | None:
        """The key for the kept results of a step; None if nothing is kept."""
        ...

    def model(self, step: int) -> nn.Module:
        """The TransformerLens model of a step."""
        ...

    def context(self) -> tuple[int, int]:
        """The size of the vocabulary and the longest sequence."""
        ...

    def initial(self) -> Weights | nn.Module | None:
        """The weights before training; None if they are not known."""
        ...


class _InMemory:
    """The common part of models and stacked weights: no training steps, no task, and nothing kept on the disk."""

    has_steps = False
    task = None
    keep = None

    def identity(self, step: int) -> None:
        return None

    def initial(self) -> None:
        return None


@dataclass(frozen=True, eq=False)
class OneModel(_InMemory):
    """A TransformerLens model as a source of one step, numbered 0."""

    own: nn.Module
    name: str = "model"

    @property
    def steps(self) -> Int[np.ndarray, " step"]:
        return np.array([0])

    def choose(self, step: "Steps") -> list[int]:
        known = step is None or (isinstance(step, str) and step in ("all", "last"))
        none = "none: this is a model, not a trajectory"
        require(known or np.array_equal(np.atleast_1d(np.asarray(step)), [0]), "step", none, step)
        return [0]

    def in_turn(self, steps: Sequence[int], size: int) -> Iterator[tuple[list[int], nn.Module]]:
        yield list(steps), self.own

    def model(self, step: int) -> nn.Module:
        return self.own

    def context(self) -> tuple[int, int]:
        cfg: Any = self.own.cfg
        return cfg.d_vocab, cfg.n_ctx

    @property
    def reads_text(self) -> bool:
        """Whether it has a tokenizer."""
        return getattr(self.own, "tokenizer", None) is not None

    def encode(self, text: str) -> Int[Tensor, "one pos"]:
        """The tokens of a text by the model's tokenizer."""
        import torch

        tokenizer: Any = getattr(self.own, "tokenizer", None)
        allowed = "a model with a tokenizer, or the task whose vocabulary the text is in"
        require(tokenizer is not None, "task", allowed, "none")
        tokens = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=torch.long)
        require(len(tokens) > 0, "text", "at least one token", repr(text))
        return tokens[None]

    def words(self, tokens: Int[Tensor, " pos"]) -> list[str]:
        """Tokens as text; their numbers if the model has no tokenizer."""
        tokenizer: Any = getattr(self.own, "tokenizer", None)
        return [str(token) if tokenizer is None else tokenizer.decode([token]) for token in tokens.tolist()]


@dataclass(frozen=True, eq=False)
class StackedWeights(_InMemory):
    """Weights by name as a source; steps are indices along the leading axis. It has memories but no model to run."""

    own: Weights
    name: str = "weights"
    refusal = None

    @property
    def steps(self) -> Int[np.ndarray, " step"]:
        lengths = {len(weight) for name, weight in self.own.items() if has_step_axis(name, weight)}
        require(len(lengths) <= 1, "weights", "the same number of steps in each", sorted(lengths))
        return np.arange(lengths.pop() if lengths else 1)

    def choose(self, step: "Steps") -> list[int]:
        def resolve(one: int) -> int:
            n = len(self.steps)
            require(one in self.steps, "step", f"a position from 0 to {n - 1}", one)
            return int(one)

        return chosen_steps(self.steps, step, resolve)

    def in_turn(self, steps: Sequence[int], size: int) -> Iterator[tuple[list[int], None]]:
        for start in range(0, len(steps), size):
            yield list(steps[start : start + size]), None

    def stacked(self, steps: Sequence[int]) -> LazyWeights:
        """The weights at some of the steps."""

        def read(name: str) -> Tensor:
            weight = self.own[name]
            return weight[list(steps)] if has_step_axis(name, weight) else weight

        return LazyWeights(tuple(self.own), read)

    def model(self, step: int) -> nn.Module:
        raise UnsupportedError("needs a model to run, stacked weights alone do not make one")

    def runner(self, step: int, via: Via | None = None) -> Runner:
        raise UnsupportedError("needs a model to run, stacked weights alone do not make one")

    def context(self) -> tuple[int, int]:
        raise UnsupportedError("needs a model to run, stacked weights alone do not make one")


def open_source(source: Any) -> Source:
    """The source for a run, a series, the folder or name of either, a model, or weights by name.

    >>> open_source("induction-small")
    Trajectory('induction-small': 5 steps from 0 to 600)
    """
    if isinstance(source, str | Path):
        folder = find(source)
        opened: Any = revisions(folder) if is_series(folder) else load(folder)
        return opened
    if isinstance(source, Mapping):
        require(bool(source), "source", "weights by name", "none")
        return StackedWeights(source)
    if isinstance(source, nn.Module) and hasattr(source, "run_with_hooks"):
        return OneModel(source)
    allowed = "a run, a series, the folder or name of either, a TransformerLens model or stacked weights"
    if not isinstance(source, Source) or isinstance(source, nn.Module):
        raise InputError(f"source: expected {allowed}, got {_described(source)}")
    return source


@field_docs
@dataclass(frozen=True)
class Stack(Memories):
    """The weights of some steps, with the task if known. Axes are as in `Memories`: step, then heads."""

    n_steps: int = 1
    """The number of steps."""
    task: Task | None = None
    """The task, if known."""
    before: Callable[[], Weights | nn.Module | None] = lambda: None
    """Reads the weights before training, without a step axis; None if not known."""

    @property
    def length(self) -> int:
        """T: the number of positions of the task, or else of the model."""
        self.require_weights("pos_embed.W_pos", "learned positions")
        n_ctx = self.weights["pos_embed.W_pos"].shape[-2]
        return n_ctx if self.task is None else min(n_ctx, self.task.length)

    def association(self, what: str) -> Association:
        """A memory by its name in `model/associations.py`: `W_K2`, `W_K1[0:64]_causal` ..."""
        return associate(self, what, task=self.task)

    def require_task(self) -> Task:
        return required(self.task)

    def ask(self, capability: str) -> Any:
        """A capability of the task, such as `bigram`; an error if the task is not known or does not offer it."""
        return ask(required(self.task), capability)

    def require_initial(self) -> Weights:
        initial = self.before()
        if initial is None:
            raise UnsupportedError("needs the weights at initialisation, which only a trajectory can know")
        return parameters(initial) if isinstance(initial, nn.Module) else initial


@field_docs
@dataclass(frozen=True, eq=False)
class Selection:
    """A source, some of its steps, and the sequences to run them on.

    >>> select("induction-small", step=[0, 600], sequences=2).batch.tokens.shape
    torch.Size([2, 256])
    """

    source: Source
    steps: Int[np.ndarray, " step"]
    """The chosen steps; empty if the source does not know its steps before reading."""
    task: Any
    """The task, or None."""
    given: Sequences
    drawn: int
    """The number of sequences drawn without a batch."""
    given_initial: Weights | nn.Module | None = None
    via: Via | None = None
    progress: "Progress" = None
    reduced: bool = False
    """Whether fewer sequences are drawn than for a single step."""
    engine: Engine | None = None
    """Measures the steps in other processes; None for this process."""

    @property
    def name(self) -> str:
        return self.source.name

    def require_task(self) -> Any:
        """The task; an error if it is not known."""
        if self.task is None:
            raise InputError("task: expected the task of the sequences (a model alone does not know it), got none")
        return self.task

    @property
    def eval_seed(self) -> int:
        """Seed of the evaluation batch: the run's, or the default."""
        return getattr(self.source, "eval_seed", TrainConfig.eval_seed)

    @cached_property
    def batch(self) -> Any:
        """The user's sequences, or else sequences from the task, or without a task random tokens repeated once."""
        if self.given is not None:
            found = self.given if isinstance(self.given, Batch) else batch_of_tokens(self.given)
            if found.tokens.numel() and len(self.steps) and not isinstance(self.source, StackedWeights):
                size, low, high = self.source.context()[0], int(found.tokens.min()), int(found.tokens.max())
                require(low >= 0 and high < size, "batch", f"tokens from 0 to {size - 1}", f"{low} to {high}")
        elif self.task is not None:
            found = self.task.sample(self.drawn, step_rng(self.eval_seed, 0))
            if self.reduced:
                logger.warning("%d sequences are drawn, not %d, since there are several steps", self.drawn, SEQUENCES)
        else:
            found = batch_of_tokens(within_context(*self.source.context(), self.drawn))
        own = getattr(self.source, "own", None)
        return found.to(next(own.parameters()).device) if isinstance(own, nn.Module) else found

    def initial(self) -> Weights | nn.Module | None:
        """The weights before training; None if they are not known."""
        return self.source.initial() if self.given_initial is None else self.given_initial

    def in_turn(self, steps: Sequence[int] | None = None, size: int = 1) -> "Iterator[At]":
        """The chosen steps, or `steps`, in groups of at most `size`."""
        for group, model in self.source.in_turn(self.steps.tolist() if steps is None else steps, size):
            yield At(self, group, model)

    def at(self, step: int | None = None) -> "At":
        """The source at one step, by default the last of the chosen steps."""
        return next(self.in_turn([int(self.steps[-1]) if step is None else step]))

    @property
    def only(self) -> "At":
        """The only chosen step."""
        require(len(self.steps) == 1, "step", "one step", len(self.steps))
        return self.at()

    @property
    def stack(self) -> Stack:
        """The weights of all chosen steps."""
        parts = list(self.in_turn(size=max(1, len(self.steps))))
        if len(parts) != 1:
            raise UnsupportedError("reads one checkpoint of a series at a time, and stacks no weights")
        return parts[0].stack


@field_docs
@dataclass(eq=False)
class At:
    """The argument of a measure: one step of a source, or several for measures of stacked weights.

    >>> at = select("induction-small", step=600, sequences=2).at()
    >>> at.step, at.batch.tokens.shape, at.stack.memory("W_O2").shape
    (600, torch.Size([2, 256]), torch.Size([1, 1, 128, 128]))
    """

    chosen: Selection
    steps: list[int]
    """The training steps."""
    loaded: nn.Module | None = field(default=None, repr=False)
    """The model, if the source holds one model at a time."""

    @property
    def step(self) -> int:
        """The training step."""
        assert len(self.steps) == 1
        return self.steps[0]

    @cached_property
    def model(self) -> Any:
        """The TransformerLens model."""
        return self.chosen.source.model(self.step) if self.loaded is None else self.loaded

    @cached_property
    def runner(self) -> Runner:
        """Runs the model, intact or patched; for a trajectory, without TransformerLens."""
        source: Any = self.chosen.source
        return (
            source.runner(self.step, self.chosen.via)
            if self.loaded is None
            else runner(self.loaded, via=self.chosen.via)
        )

    @cached_property
    def stack(self) -> Stack:
        """The weights, each read on use."""
        known = {"n_steps": len(self.steps), "task": self.chosen.task, "before": self.chosen.initial}
        if self.loaded is not None:
            return Stack(model_weights(self.loaded), **known, refusal=self.runner.refusal)
        source: Any = self.chosen.source
        weights, config = source.stacked(self.steps), getattr(source, "model_config", None)
        if isinstance(config, Architecture) and not is_plain_relu(config["act_fn"], config["gated_mlp"]):
            weights = LazyWeights([name for name in weights if ".mlp." not in name], weights.__getitem__)
        return Stack(weights, **known, refusal=source.refusal)

    @cached_property
    def batch(self) -> Any:
        """The sequences, on the model's device."""
        found = self.chosen.batch
        return found if self.loaded is None else found.to(next(self.loaded.parameters()).device)

    @property
    def task(self) -> Any:
        """The task, or None."""
        return self.chosen.task


def select(
    source: Any,
    *,
    step: "Steps" = None,
    batch: "Sequences" = None,
    task: Any = None,
    sequences: int | None = None,
    initial: "Weights | nn.Module | None" = None,
    via: Via | None = None,
    progress: "Progress" = None,
    engine: Engine | None = None,
) -> Selection:
    """Choose steps and sequences of a source.

    `step` is a stored step, several, or "all"; by default the last. `batch` are the sequences, also as a tensor of
    tokens. By default `sequences` are drawn from `task` or the run's task (64, or 16 for several steps); without a task
    they are random tokens repeated once. `initial` are the weights before training, if the source is a model. `via` is
    "hooks" or "fast". `progress` is None for a line, False, or a function of (done, total).

    >>> select("induction-small", step="all").steps
    array([  0, 100, 200, 300, 600])
    """
    require(task is None or isinstance(task, Task), "task", "a task", repr(task))
    require(not isinstance(step, Tensor), "step", "a stored step (tokens are given as batch=)", "a tensor")
    tokens = isinstance(batch, Tensor) and batch.dim() == 2 and not batch.is_floating_point() and len(batch) > 0
    allowed = "a Batch, or whole numbers of shape [batch, pos]"
    if batch is not None and not isinstance(batch, Batch) and not tokens:
        raise InputError(f"batch: expected {allowed}, got {_described(batch)}")
    if sequences is not None:
        require_integer(sequences, "sequences", 1, None)
    opened = open_source(source)
    steps = opened.choose(step)
    reduced = sequences is None and len(steps) != 1
    drawn = sequences or (SEQUENCES_PER_STEP if reduced else SEQUENCES)
    require(engine is None or isinstance(engine, Engine), "engine", "such as im.sweep.Workers(4)", repr(engine))
    chosen = np.array(steps, dtype=np.int64)
    return Selection(opened, chosen, task or opened.task, batch, drawn, initial, via, progress, reduced, engine)


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that memories are read from, by HookedTransformer's names.

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


def batch_of_tokens(tokens: Int[Tensor, "batch pos"]) -> Any:
    """Any sequences as a batch. A position is in context if the pair of its token and the next one occurred before.

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


def _described(source: Any) -> str:
    if isinstance(source, Tensor):
        return f"{source.dtype} of shape {tuple(source.shape)}"
    return repr(source) if isinstance(source, int | float | None) else f"a {type(source).__name__}"
