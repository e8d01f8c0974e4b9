"""A training run on the disk, read on request and checked while reading.

run = load("checkpoints/induction-alone")
run.steps, run.config, run.metrics     numpy steps, frozen configuration, DataFrame
run.model(300)                         a HookedTransformer; the last step without a number
run.memory("W_O2")                     [step, d, d] in the paper's orientation
run[300], run[-1], len(run)            the same as a mapping from steps to models
for step in run: run.state(step)       one step in memory at a time

A folder of this package's format may be finished or still growing. Every file is checked against the manifest, and
every step file against its step and its run. `export.py` reads exported steps and folders of state dicts.

The weights before training are step 0 of the run, if it is stored and not rounded. Otherwise they are recomputed from
the configuration and the seed, which gives the same bits, and compared with the checksum in the manifest. If they
cannot be known, they are None.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from induction_memory.errors import DamagedError, InputError, require
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import AnyModel, Architecture, ModelConfig
from induction_memory.model.memories import LazyWeights
from induction_memory.task.protocol import Task
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.lock import CACHE
from induction_memory.trajectory.manifest import (
    FROZEN,
    MANIFEST,
    METRICS,
    OPTIMIZER,
    ROUNDED,
    STATE_OPTIMIZER,
    STATE_WEIGHTS,
    TRAINED,
    Manifest,
    digest,
    step_files,
    step_path,
)
from induction_memory.trajectory.search import ByStep, Steps, find, is_series
from induction_memory.trajectory.tensors import (
    W_E,
    W_U,
    RoundedFile,
    SealedFile,
    checksum,
    open_listed,
    open_state,
    stored_names,
    with_tied,
)

if TYPE_CHECKING:
    from induction_memory.model.building import HookedTransformer
    from induction_memory.runner.recording import Runner, Via
else:
    HookedTransformer = nn.Module  # reading weights does not wait for TransformerLens


def load(source: str | Path, *, model: "AnyModel | None" = None, task: Task | None = None) -> "Trajectory":
    """The trajectory in a folder, or the shipped one of this name; weights are read on first use.

    For a folder of plain state dicts (safetensors, or .pt read with `weights_only`), pass `model`, its configuration,
    and optionally `task`.

    >>> load("induction-small")
    Trajectory('induction-small': 5 steps from 0 to 600)
    """
    known = model is None or isinstance(model, ModelConfig | Architecture)
    require(known, "model", "a ModelConfig or an Architecture", repr(model))
    require(task is None or isinstance(task, Task), "task", "a task", repr(task))
    folder = find(source)
    if (folder / MANIFEST).exists():
        require(model is None, "model", "none: the trajectory has its own", "a configuration")
        require(task is None, "task", "none: the trajectory has its own", "a task")
        return Trajectory(folder)
    from induction_memory.trajectory.export import ExportedStep, PlainFolder, is_export

    if is_export(folder):
        return ExportedStep(folder)
    if model is None:
        got = "a series of checkpoints (im.revisions reads it)" if is_series(folder) else "none there"
        raise InputError(f"{folder}: expected a trajectory (a folder with {MANIFEST}), got {got}")
    return PlainFolder(folder, model, task)


def opened(source: "Trajectory | str | Path") -> "Trajectory":
    """The trajectory `source`, or the one with this folder or name."""
    run = load(source) if isinstance(source, str | Path) else source
    require(isinstance(run, Trajectory), "source", "a trajectory, its folder or name", type(run).__name__)
    return run


Read = TypeVar("Read", bound=Callable[..., Any])


def _of_the_run_as_it_is(read: Read) -> Read:
    """Read again if a file was missing or had changed because the run finished in the meantime."""

    @wraps(read)
    def careful(self: "Trajectory", *arguments: Any, **named: Any) -> Any:
        try:
            return read(self, *arguments, **named)
        except DamagedError:
            if not self._has_moved_on():
                raise
            return read(self, *arguments, **named)

    return cast(Read, careful)


class Trajectory(ByStep[HookedTransformer]):
    """A run: its steps, its configuration, its metrics and its weights.

    >>> import induction_memory as im
    >>> run = im.load("induction-small")
    >>> run.steps, run.config.task.k
    (array([  0, 100, 200, 300, 600]), 5)
    >>> run.metrics["loss"].iloc[-1].round(3)
    np.float64(0.261)
    >>> run.memory("W_O2", [0, 600]).shape
    torch.Size([2, 128, 128])
    >>> type(run.model(step=600)).__name__
    'HookedTransformer'
    """

    def __init__(self, path: Path) -> None:
        self.manifest = manifest = Manifest.read(path)
        self.path = path
        """The folder."""
        self.name: str = path.resolve().name
        """The folder's name."""
        self.keep: Path = path / CACHE
        """The folder in which results are kept."""
        self.model_config: AnyModel = manifest.part(path, "model")
        self.task: Any = manifest.part(path, "task")
        """The task; None for a run that was imported without a task."""
        self.finished = manifest.finished
        self.parent: dict[str, Any] | None = manifest.parent
        """For a branch: the name, fingerprint and step of its parent run."""
        self.initial_checksum: str | None = manifest.initial
        self.rounding = RoundedFile(path, manifest) if ROUNDED in manifest.pieces else None
        """The file of the rounded steps."""
        self.rounded: Int[np.ndarray, " step"] = np.array(self.rounding.steps if self.rounding else (), dtype=np.int64)
        """The steps whose weights are rounded, each to within 0.05 % of its parameter's root mean square."""
        self._opened: dict[str, SealedFile] = {}

    def __repr__(self) -> str:
        steps = self.steps
        span = f"{len(steps)} steps from {steps[0]} to {steps[-1]}" if len(steps) else "no step yet"
        rounded = f", {len(self.rounded)} of them rounded" if len(self.rounded) else ""
        return f"Trajectory({self.name!r}: {span}{rounded})"

    def _repr_html_(self) -> str:
        """In a notebook: what it is, its last metrics, and every field of its configuration."""
        last = self.metrics.tail(1).dropna(axis=1).to_html(index=False, float_format="{:.3g}".format)
        config = "" if self.task is None else self.config._repr_html_()
        return f"<p>{escape(repr(self))}</p>\n{last}\n{config}"

    @cached_property
    def train(self) -> TrainConfig:
        """The training configuration; of an imported run, only the number of steps is known."""
        return self.manifest.part(self.path, "train")

    @cached_property
    def config(self) -> RunConfig:
        """Task, model and training."""
        require(self.task is not None, "run", "a trajectory with a task", f"{self.name}, imported without one")
        return RunConfig(self.task, self.model_config, self.train)

    @property
    def eval_seed(self) -> int:
        """The seed of the evaluation sequences; for an imported run, the default."""
        return self.manifest.config["train"].get("eval_seed", TrainConfig.eval_seed)

    @cached_property
    @_of_the_run_as_it_is
    def steps(self) -> Int[np.ndarray, " step"]:
        """The stored steps. While the run grows, they stay as first read, until it is found to have finished."""
        exact = self._file(TRAINED).steps if self.finished else step_files(self.path)
        steps = np.array(sorted({*exact, *self.rounded.tolist()}), dtype=np.int64)
        steps.setflags(write=False)
        return steps

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that never change."""
        names = tuple(self._file(FROZEN).tensors)
        return (*names, W_U) if self.model_config.tied_output and W_E in names else names

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """The parameters that change."""
        if self.finished:
            names = tuple(self._file(TRAINED).tensors)
        else:
            names = stored_names(self.model_config, self.config.moving_parameters)
        return (*names, W_U) if self.model_config.tied_output and W_E in names else names

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content; while the run grows, of the steps and lines present at first use."""
        pieces = {name: piece.sha256 for name, piece in self.manifest.pieces.items()}
        lines = self.path / METRICS
        growing = [] if self.finished else [self.steps.tolist(), lines.stat().st_size if lines.exists() else 0]
        return digest([self.manifest.config, self.manifest.first_step, pieces, growing])

    @_of_the_run_as_it_is
    def rows(self) -> list[dict[str, Any]]:
        """One row of metrics per training step."""
        return row_files.of(self.path, self.manifest)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per training step; NaN where something was not measured."""
        table = pd.DataFrame(self.rows())
        numbers = [name for name in table if name not in ("step", "checkpoint")]
        return table.astype(dict.fromkeys(numbers, "float64"))

    def _file(self, name: str) -> SealedFile:
        """A file of tensors, opened on first use."""
        if name not in self._opened:
            self._opened[name] = open_listed(self.path, self.manifest, name)
        return self._opened[name]

    @_of_the_run_as_it_is
    def read_step(self, name: str, step: int) -> Tensor:
        """A parameter at one step."""
        if self.model_config.tied_output and name == W_U:
            return self.read_step(W_E, step).mT
        if name in self.frozen:
            return self._file(FROZEN).read(name)
        if self.rounding is not None and step in self.rounding.steps:
            return self.rounding.read_step(name, step, self.model_config.shapes[name])
        if self.finished:
            return self._file(TRAINED).read(name, step)
        return open_state(step_path(self.path, step), self.manifest, step).read(STATE_WEIGHTS + name)

    @_of_the_run_as_it_is
    def read_stack(self, name: str, steps: Sequence[int]) -> Tensor:
        """A parameter at some steps, with a step axis; without one if it is frozen."""
        if self.model_config.tied_output and name == W_U:
            return self.read_stack(W_E, steps).mT
        if name in self.frozen:
            return self._file(FROZEN).read(name)
        if self.finished and tuple(steps) == self._file(TRAINED).steps:
            return self._file(TRAINED).read(name)
        return torch.stack([self.read_step(name, step) for step in steps])

    @_of_the_run_as_it_is
    def stored_optimizer(self, step: int) -> dict[str, Tensor] | None:
        """The optimiser's state before update `step`; None if it was not kept."""
        if step in self.rounded:
            return None
        if not self.finished:
            return open_state(step_path(self.path, step), self.manifest, step).read_all(STATE_OPTIMIZER) or None
        if OPTIMIZER not in self.manifest.pieces:
            return None
        file = open_listed(self.path, self.manifest, OPTIMIZER)
        return file.read_all(step=step) if step in file.steps else None

    def _has_moved_on(self) -> bool:
        """Whether the run has finished since it was opened; a finished run with more steps is refused."""
        now = Manifest.read(self.path)
        if now == self.manifest:
            return False
        if self.finished:
            raise InputError(f"{self.path}: expected the run as it was opened, got more steps: load it again")
        self.manifest, self.finished = now, now.finished
        for name in ("steps", "moving", "fingerprint"):
            self.__dict__.pop(name, None)
        return True

    def state(self, step: int, nearest: bool = False) -> dict[str, Tensor]:
        """Every parameter at one step, by its name in the HookedTransformer."""
        step = self.resolve(step, nearest)
        return {name: self.read_step(name, step) for name in (*self.frozen, *self.moving)}

    def initial(self) -> dict[str, Tensor] | None:
        """Every parameter before any training, or None if not known.

        This is the stored step 0, or it is recomputed from the configuration and the seed and compared with the
        checksum in the manifest. A branch has its parent's. It is not known for an imported run, nor for a run that
        began with a graft and does not store step 0.
        """
        return self._initial

    @cached_property
    def _initial(self) -> dict[str, Tensor] | None:
        if self.initial_checksum is None or not len(self.steps):
            return None
        if self.parent is None and 0 in self.steps and 0 not in self.rounded:
            return self.state(0)
        from induction_memory.model.building import build, initial_weight

        config, seed = self.model_config, self.train.init_seed
        if isinstance(config, Architecture):
            found = {name: parameter.detach() for name, parameter in build(config, seed).named_parameters()}
        else:
            later = self.state(int(self.steps[-1]))
            names = stored_names(config, later)
            found = with_tied(config, {n: initial_weight(n, tuple(later[n].shape), config, seed) for n in names})
        if checksum(config, found) == self.initial_checksum:
            return found
        logging.getLogger("induction_memory").warning(
            "%s: its initial weights cannot be computed again from its configuration and seed", self.path
        )
        return None

    def model(self, step: int | Literal["last"] = "last", nearest: bool = False) -> HookedTransformer:
        """The model at one step, by default the last; `nearest` takes the closest stored step."""
        from induction_memory.model.building import build, fill

        step = self.choose("last")[0] if isinstance(step, str) and step == "last" else step
        state = self.state(step, nearest)
        model = build(self.model_config)
        fill(model, state)
        return model

    def in_turn(self, steps: Sequence[int], size: int) -> Iterator[tuple[list[int], None]]:
        """The steps in groups of `size`; their weights are read on use."""
        for start in range(0, len(steps), size):
            yield list(steps[start : start + size]), None

    def runner(self, step: int, via: "Via | None" = None) -> "Runner":
        """The runner of a step, from its weights and the configuration, without TransformerLens."""
        from induction_memory.runner.choice import runner

        return runner(self.state(step), self.model_config, via=via)

    def identity(self, step: int) -> str:
        """The key for the kept results of a step."""
        return f"{self.fingerprint} {step}"

    has_steps = True

    def context(self) -> tuple[int, int]:
        """The size of the vocabulary and the longest sequence."""
        return self.model_config.d_vocab, self.model_config.n_ctx

    @property
    def refusal(self) -> str | None:
        """Why memories cannot be read from the weights; None if they can."""
        return self.runner(int(self.steps[-1])).refusal if isinstance(self.model_config, Architecture) else None

    def stack(self, parameter: str, step: "Steps" = "all") -> Shaped[Tensor, "step ..."]:
        """One parameter over all steps, or some, in TransformerLens's orientation.

        The name is the HookedTransformer's or the paper's. A frozen parameter is repeated without a copy.
        """
        require(isinstance(parameter, str), "parameter", "the name of a parameter", repr(parameter))
        name = self.model_config.parameters.get(parameter, parameter)
        chosen = self._in_order(step)
        if name not in (*self.frozen, *self.moving):
            known = ", ".join(self.model_config.parameters)
            raise InputError(f"parameter: expected one of {known} or a name in the model, got {parameter!r}")
        value = self.read_stack(name, chosen)
        return expand(value, len(chosen)) if name in self.frozen else value

    def stacked(self, steps: Sequence[int] | None = None) -> LazyWeights:
        """Every parameter by name, read on use; parameters that change have a leading step axis."""
        chosen = tuple(self.steps.tolist() if steps is None else steps)
        stored = (*self.frozen, *self.moving)

        def read(name: str) -> Tensor:
            return self.read_stack(name, chosen) if name in stored else self._of_norms[name]

        return LazyWeights((*stored, *self._of_norms), read)

    @cached_property
    def _of_norms(self) -> dict[str, Tensor]:
        """What memories need of a model's norms beside its parameters: epsilons, and gains that were folded."""
        if not isinstance(self.model_config, Architecture):
            return {}
        from induction_memory.model.building import as_configured
        from induction_memory.runner.weights import parameters

        known = {*self.frozen, *self.moving}
        return {n: value for n, value in parameters(as_configured(self.model_config)).items() if n not in known}

    def memory(self, name: str, step: "Steps" = "all") -> Float[Tensor, "step *head d_out d_in"]:
        """A matrix over all steps, or some, in the paper's orientation; names as in `model.memories`."""
        from induction_memory.model import memories

        chosen = self._in_order(step)
        value = memories.matrix(self.stacked(chosen), name)
        with_heads = self.model_config.n_heads > 1 and not name.startswith("W_F")
        return value if value.dim() == 3 + with_heads else expand(value, len(chosen))

    def embedding(self, name: str, step: "Steps" = "all") -> Float[Tensor, "*step n d_model"]:
        """Rows of embeddings, with a step axis only if they change; names as in `model.memories`."""
        from induction_memory.model import memories

        return memories.embedding(self.stacked(self._in_order(step)), name)

    def optimizer_state(self, step: int) -> dict[str, Tensor]:
        """The optimiser's state before update `step`."""
        state = self.stored_optimizer(self.resolve(step))
        if state is None:
            raise InputError(f"{self.path}: expected the optimiser's state of step {step}, got none: it was not kept")
        return state

    def export(self, step: int, out: str | Path, nearest: bool = False) -> Path:
        """Write one step as config.json and model.safetensors into the new folder `out`, and return it."""
        from induction_memory.trajectory.export import write_export

        return write_export(self, self.resolve(step, nearest), out)

    def _in_order(self, step: Steps) -> tuple[int, ...]:
        """The stored steps that `step` means, in the order given."""
        if step is None or isinstance(step, str):
            return tuple(self.choose(step))
        wanted = np.atleast_1d(np.asarray(step)).tolist()
        require(len(wanted) > 0, "step", "at least one step", "none")
        return tuple(map(self.resolve, wanted))


def expand(value: Shaped[Tensor, "*rest"], count: int) -> Shaped[Tensor, "step *rest"]:
    """The same tensor at every step, without a copy."""
    return value.expand(count, *value.shape)
