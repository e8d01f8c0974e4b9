"""A training run on the disk, read on request and checked while it is read.

run = load("checkpoints/induction-alone")
run.steps, run.config, run.metrics     numpy steps, frozen configuration, DataFrame
run.model(300)                         a HookedTransformer; the last step without a number
run.memory("W_O2")                     [step, d, d] in the paper's orientation
for step, state in run: ...            one step in memory at a time
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import require_folder
from induction_memory.model.config import AnyModel, Architecture, ModelConfig
from induction_memory.model.memories import LazyWeights
from induction_memory.task.protocol import Task
from induction_memory.trajectory.export import ExportSource, PlainSource, is_export, write_export
from induction_memory.trajectory.folder import FolderSource, closest, expand
from induction_memory.trajectory.layout import MANIFEST
from induction_memory.trajectory.lock import CACHE
from induction_memory.trajectory.search import Steps, chosen_steps, find, require_stored
from induction_memory.trajectory.states import checksum, fill, initial_weights

if TYPE_CHECKING:
    from induction_memory.model.building import HookedTransformer
    from induction_memory.runner.recording import Runner, Via
else:
    HookedTransformer = nn.Module  # reading weights does not wait for TransformerLens


def load(path: str | Path, *, model: AnyModel | None = None, task: Task | None = None) -> "Trajectory":
    """The trajectory in a folder, or the shipped one of that name; its numbers stay on the disk until asked for.

    A folder of plain state dicts (safetensors, or .pt read with `weights_only`) needs the configuration of their model,
    and may be given their task.

    >>> load("induction-small")
    Trajectory('induction-small': 5 steps from 0 to 600)
    """
    known = model is None or isinstance(model, ModelConfig | Architecture)
    require(known, "model", "a ModelConfig or an Architecture", repr(model))
    require(task is None or isinstance(task, Task), "task", "a task", repr(task))
    folder = find(path)
    if (folder / MANIFEST).exists():
        require(model is None, "model", "none: the trajectory has its own", "a configuration")
        require(task is None, "task", "none: the trajectory has its own", "a task")
        return Trajectory(FolderSource(folder))
    if is_export(folder):
        return Trajectory(ExportSource(folder))
    if model is None:
        raise InputError(f"{folder}: expected a trajectory (a folder with {MANIFEST}), got none there")
    return Trajectory(PlainSource(folder, model, task))


class Trajectory:
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

    def __init__(self, source: FolderSource | PlainSource) -> None:
        self.source = source
        """The storage backend, for what this class does not expose."""
        self.path: Path = source.path
        """The folder."""
        self.name = source.path.resolve().name
        """The folder's name."""
        self.keep = source.path / CACHE
        """The folder in which results are kept."""
        self.model_config: AnyModel = source.model_config
        self.task: Any = source.task
        """The task; None for a run that was imported without."""

    def __repr__(self) -> str:
        steps = self.source.steps
        span = f"{len(steps)} steps from {steps[0]} to {steps[-1]}" if steps else "no step yet"
        rounded = f", {len(self.source.rounded)} of them rounded" if self.source.rounded else ""
        return f"Trajectory({self.name!r}: {span}{rounded})"

    @property
    def fingerprint(self) -> str:
        """A hash of the content, for caches of what was computed from it."""
        return self.source.fingerprint

    @property
    def finished(self) -> bool:
        return self.source.finished

    @property
    def parent(self) -> dict[str, Any] | None:
        """For a branch: the name, fingerprint and step of the run it left."""
        return self.source.parent

    @property
    def steps(self) -> Int[np.ndarray, " step"]:
        """The steps whose weights are stored."""
        return np.array(self.source.steps, dtype=np.int64)

    @property
    def rounded(self) -> Int[np.ndarray, " step"]:
        """The steps among them whose weights are rounded, each to within 0.05 % of its parameter's root mean square."""
        return np.array(self.source.rounded, dtype=np.int64)

    @property
    def eval_seed(self) -> int:
        """The seed of the sequences on which it is evaluated."""
        return self.source.train.eval_seed

    @cached_property
    def config(self) -> RunConfig:
        """Task, model and training; for an imported run, only the number of steps of the training is known."""
        require(self.task is not None, "run", "a trajectory with a task", f"{self.name}, imported without one")
        return RunConfig(self.task, self.model_config, self.source.train)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row per training step; NaN where something was not measured."""
        table = pd.DataFrame(self.source.rows())
        numbers = [name for name in table if name not in ("step", "checkpoint")]
        return table.astype(dict.fromkeys(numbers, "float64"))

    def state(self, step: int, nearest: bool = False) -> dict[str, Tensor]:
        """Every parameter at one step, by its name in the HookedTransformer."""
        return self.source.state(self.resolve(step, nearest))

    def initial(self) -> dict[str, Tensor] | None:
        """Every parameter before any training, or None if that is not known.

        It is the stored step 0, or is computed again from the configuration and the seed and compared with the checksum
        in the manifest. A branch has its parent's. It is not known for an imported run, nor for a run that began with a
        graft and does not store step 0.
        """
        return self._initial

    @cached_property
    def _initial(self) -> dict[str, Tensor] | None:
        return initial_weights(self.source)

    def model(self, step: int | Literal["last"] = "last", nearest: bool = False) -> HookedTransformer:
        """The model at one step, the last one by default; `nearest` takes the stored step that is closest."""
        from induction_memory.model.building import build

        self.require_steps()
        state = self.state(int(self.steps[-1]) if isinstance(step, str) and step == "last" else step, nearest)
        model = build(self.model_config)
        fill(model, state)
        return model

    def choose(self, step: Steps) -> list[int]:
        """The stored steps that `step` means: one, several, "all", or the last."""
        self.require_steps()
        return chosen_steps(self.steps, step, self.resolve)

    def in_turn(self, steps: Sequence[int], size: int) -> Iterator[tuple[list[int], None]]:
        """The steps in groups of `size`; their weights are read when they are used."""
        for start in range(0, len(steps), size):
            yield list(steps[start : start + size]), None

    def runner(self, step: int, via: "Via | None" = None) -> "Runner":
        """The runner of a step, from its weights and the configuration, without TransformerLens."""
        from induction_memory.runner.choice import runner

        return runner(self.state(step), self.model_config, via=via)

    def identity(self, step: int) -> str:
        """What the results of a step are kept under."""
        return f"{self.fingerprint} {step}"

    has_steps = True

    def context(self) -> tuple[int, int]:
        """The size of the vocabulary and the longest sequence."""
        return self.model_config.d_vocab, self.model_config.n_ctx

    @property
    def refusal(self) -> str | None:
        """Why memories cannot be read from the weights; None where they can."""
        from induction_memory.runner.support import of_settings

        config = self.model_config
        return of_settings(dict(config.settings)) if isinstance(config, Architecture) else None

    def models(self) -> Iterator[tuple[int, HookedTransformer]]:
        """Step and model, one after another. It is one model, whose weights change."""
        from induction_memory.model.building import build

        model = build(self.model_config)
        for step, state in self:
            fill(model, state)
            yield step, model

    def __iter__(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Step and state, one step in memory at a time."""
        for step in self.source.steps:
            yield step, self.source.state(step)

    def stack(self, parameter: str, steps: Sequence[int] | None = None) -> Shaped[Tensor, "step ..."]:
        """One parameter over all steps (or those given), in the model's own orientation.

        The name is that in the HookedTransformer or in the paper. A frozen parameter is repeated without a copy.
        """
        require(isinstance(parameter, str), "parameter", "the name of a parameter", repr(parameter))
        name = self.model_config.parameters.get(parameter, parameter)
        chosen = self.resolve_all(steps)
        if name not in (*self.source.frozen, *self.source.moving):
            known = ", ".join(self.model_config.parameters)
            raise InputError(f"parameter: expected one of {known} or a name in the model, got {parameter!r}")
        value = self.source.read_stack(name, chosen)
        return expand(value, len(chosen)) if name in self.source.frozen else value

    def stacked(self, steps: Sequence[int] | None = None) -> LazyWeights:
        """Every parameter by name, read when it is used; those that change have a leading axis of stored steps."""
        chosen, source = self.source.steps if steps is None else tuple(steps), self.source
        return LazyWeights((*source.frozen, *source.moving), partial(source.read_stack, steps=chosen))

    def memory(self, name: str, steps: Sequence[int] | None = None) -> Float[Tensor, "step *head d_out d_in"]:
        """A matrix over all steps (or those given) in the paper's orientation; names as in `model.memories`."""
        from induction_memory.model import memories

        chosen = self.resolve_all(steps)
        value = memories.matrix(self.stacked(chosen), name)
        with_heads = self.model_config.n_heads > 1 and not name.startswith("W_F")
        return value if value.dim() == 3 + with_heads else expand(value, len(chosen))

    def embedding(self, name: str, steps: Sequence[int] | None = None) -> Float[Tensor, "*step n d_model"]:
        """Rows of embeddings, with a step axis only if they change; names as in `model.memories`."""
        from induction_memory.model import memories

        return memories.embedding(self.stacked(self.resolve_all(steps)), name)

    def optimizer_state(self, step: int) -> dict[str, Tensor]:
        """The optimiser's state before update `step`."""
        state = self.source.optimizer(self.resolve(step))
        if state is None:
            raise InputError(f"{self.path}: expected the optimiser's state of step {step}, got none: it was not kept")
        return state

    def export(self, step: int, out: str | Path, nearest: bool = False) -> Path:
        """Write one step as config.json and model.safetensors into the new folder `out`, and return it."""
        folder, step = require_folder(out), self.resolve(step, nearest)
        empty = not folder.exists() or not any(folder.iterdir())
        require(empty, "out", "a new or an empty folder", repr(str(folder)))
        initial = self.initial()
        known = None if initial is None else checksum(self.model_config, initial)
        write_export(self.source, step, self.state(step), known, folder)
        return folder

    def require_steps(self) -> None:
        """Raise an InputError if no step is stored yet."""
        if not self.source.steps:
            raise InputError(f"{self.path}: expected at least one stored step, got none yet")

    def resolve(self, step: int, nearest: bool = False) -> int:
        """`step` if it is stored, or with `nearest` the closest stored step; otherwise an error names stored steps."""
        self.require_steps()
        whole = isinstance(step, Integral) or (isinstance(step, Real) and math.isfinite(step) and step == int(step))
        require(whole and not isinstance(step, bool), "step", "a whole number", repr(step))
        stored = self.source.steps
        if nearest and step not in stored:
            return closest(stored, step)
        require_stored(int(step), stored)
        return int(step)

    def resolve_all(self, steps: Sequence[int] | None) -> tuple[int, ...]:
        """The stored steps that are asked for; None for all of them."""
        if steps is None:
            return self.source.steps
        several = isinstance(steps, Sequence | np.ndarray) and not isinstance(steps, str) and len(steps) > 0
        require(several, "steps", "a list of one or more stored steps", repr(steps))
        return tuple(map(self.resolve, steps))
