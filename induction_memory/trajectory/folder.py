"""Where a trajectory's numbers come from: a folder of this package's format, finished or still growing.

A source knows the steps, reads one parameter at one step or over many, and checks what it reads: every file against the
manifest, every step file against its step and its run. `export.py` has the sources for exported steps and for what
others saved, with the same attributes.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from induction_memory.errors import DamagedError, InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import AnyModel
from induction_memory.task.protocol import Task
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.layout import (
    FROZEN,
    METRICS,
    OPTIMIZER,
    ROUNDED,
    STATE_OPTIMIZER,
    STATE_WEIGHTS,
    TRAINED,
    step_files,
    step_path,
)
from induction_memory.trajectory.manifest import Manifest, digest
from induction_memory.trajectory.states import W_E, W_U, stored_names
from induction_memory.trajectory.tensors import RoundedFile, SealedFile, open_listed, open_state


def _of_the_run_as_it_is(read: Callable[..., Any]) -> Callable[..., Any]:
    """Read once more if a file was missing or had changed because the run has finished in the meantime."""

    @wraps(read)
    def careful(self: "FolderSource", *arguments: Any, **named: Any) -> Any:
        try:
            return read(self, *arguments, **named)
        except DamagedError:
            if not self._has_moved_on():
                raise
            return read(self, *arguments, **named)

    return careful


class FolderSource:
    """A folder that `writer.py` made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = manifest = Manifest.read(path)
        self.finished, self.parent, self.initial_checksum = manifest.finished, manifest.parent, manifest.initial
        self.model_config: AnyModel = manifest.part(path, "model")
        self.task: Task | None = self.manifest.part(path, "task")
        self._opened: dict[str, SealedFile] = {}
        self.rounding = RoundedFile(path, manifest) if ROUNDED in manifest.pieces else None
        """The file of the steps that are kept rounded."""
        self.rounded: tuple[int, ...] = () if self.rounding is None else self.rounding.steps
        """The steps that are kept rounded."""

    @cached_property
    def train(self) -> TrainConfig:
        return self.manifest.part(self.path, "train")

    def _file(self, name: str) -> SealedFile:
        """A file of tensors, opened at the first request."""
        if name not in self._opened:
            self._opened[name] = open_listed(self.path, self.manifest, name)
        return self._opened[name]

    @cached_property
    @_of_the_run_as_it_is
    def steps(self) -> tuple[int, ...]:
        """The stored steps: as they were when they were first asked for, until the run is seen to have finished."""
        exact = self._file(TRAINED).steps if self.finished else step_files(self.path)
        return tuple(sorted({*exact, *self.rounded}))

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        """The parameters that never change."""
        names = tuple(self._file(FROZEN).tensors)
        return (*names, W_U) if self.model_config.tied_output and W_E in names else names

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """The other parameters."""
        if self.finished:
            names = tuple(self._file(TRAINED).tensors)
        else:
            assert self.task is not None, "a run that trains has a task"
            config = RunConfig(self.task, self.model_config, self.train)
            names = stored_names(self.model_config, config.moving_parameters)
        return (*names, W_U) if self.model_config.tied_output and W_E in names else names

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content; of the steps and lines that were there, while the run grows."""
        pieces = {name: piece.sha256 for name, piece in self.manifest.pieces.items()}
        lines = self.path / METRICS
        growing = [] if self.finished else [self.steps, lines.stat().st_size if lines.exists() else 0]
        return digest([self.manifest.config, self.manifest.first_step, pieces, growing])

    @_of_the_run_as_it_is
    def rows(self) -> list[dict[str, Any]]:
        return row_files.of(self.path, self.manifest)

    @_of_the_run_as_it_is
    def read_step(self, name: str, step: int) -> Tensor:
        """A parameter at one step."""
        if self.model_config.tied_output and name == W_U:
            return self.read_step(W_E, step).mT
        if name in self.frozen:
            return self._file(FROZEN).read(name)
        if self.rounding is not None and step in self.rounded:
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

    def state(self, step: int) -> dict[str, Tensor]:
        """Every parameter at one step."""
        return {name: self.read_step(name, step) for name in (*self.frozen, *self.moving)}

    @_of_the_run_as_it_is
    def optimizer(self, step: int) -> dict[str, Tensor] | None:
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
        """Whether the run has changed its state since it was opened; a finished one that changed is refused."""
        now = Manifest.read(self.path)
        if now == self.manifest:
            return False
        if self.finished:
            raise InputError(f"{self.path}: expected the run as it was opened, got more steps: load it again")
        self.manifest, self.finished = now, now.finished
        for name in ("steps", "moving", "fingerprint"):
            self.__dict__.pop(name, None)
        return True


def closest(steps: Sequence[int], step: int) -> int:
    """The stored step closest to `step`; the earlier one if two are equally close."""
    distances = np.abs(np.asarray(steps) - step)
    return int(steps[int(distances.argmin())])


def expand(value: Shaped[Tensor, "*rest"], count: int) -> Shaped[Tensor, "step *rest"]:
    """The same tensor at every step, without a copy."""
    return value.expand(count, *value.shape)
