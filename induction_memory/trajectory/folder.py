"""Where a trajectory's numbers come from: a folder of this package's format, finished or still growing.

A source knows the steps, reads one parameter at one step or over many, and checks what it reads. `plain.py` has the one
for what others saved, with the same attributes.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task import registry
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.layout import (
    FROZEN,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    TRAINED,
    step_path,
    stored_steps,
)
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.sealed import DamagedError, SealedFile
from induction_memory.trajectory.states import W_E, W_U, stored_names


def _of_the_run_that_was_opened(read: Callable[..., Any]) -> Callable[..., Any]:
    """Where a file is not what it was because the run has been given more steps, say that instead of damage."""

    @wraps(read)
    def careful(self: "FolderSource", *arguments: Any) -> Any:
        try:
            return read(self, *arguments)
        except DamagedError:
            self._require_unchanged()
            raise

    return careful


class FolderSource:
    """A folder that `writer.py` made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest.read(path)
        parts = self.manifest.config
        self.model_config = ModelConfig.from_dict(parts["model"])
        self.task = None if parts["task"] is None else registry.from_dict(parts["task"])
        self.train = TrainConfig.from_dict(parts["train"])
        self.parent = self.manifest.parent
        self.finished = self.manifest.state == "finished"

    @cached_property
    def _frozen(self) -> SealedFile:
        return SealedFile.open(self.path / FROZEN)

    @cached_property
    def _trained(self) -> SealedFile:
        self._require_unchanged()
        return SealedFile.open(self.path / TRAINED)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        return self._trained.steps if self.finished else tuple(stored_steps(self.path))

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        tied = (W_U,) if self.model_config.tied_output and W_E in self._frozen.entries else ()
        return (*self._frozen.entries, *tied)

    @cached_property
    def moving(self) -> tuple[str, ...]:
        names = tuple(self._trained.entries) if self.finished else self._growing
        return names + ((W_U,) if self.model_config.tied_output and W_E in names else ())

    @property
    def _growing(self) -> tuple[str, ...]:
        assert self.task is not None, "a run that trains has a task"
        config = RunConfig(self.task, self.model_config, self.train)
        return stored_names(self.model_config, config.moving_parameters)

    @cached_property
    def fingerprint(self) -> str:
        pieces = {name: piece.sha256 for name, piece in self.manifest.pieces.items()}
        lines = self.path / row_files.NAME
        growing = [] if self.finished else [self.steps, lines.stat().st_size if lines.exists() else 0]
        return digest([self.manifest.config, self.manifest.first_step, pieces, growing])

    @_of_the_run_that_was_opened
    def rows(self) -> list[dict[str, Any]]:
        return row_files.read(self.path / row_files.NAME, self.manifest.first_step, self.manifest.rows)

    def read_frozen(self, name: str) -> Tensor:
        return self._frozen.read(W_E).mT if self._is_tied(name) else self._frozen.read(name)

    @_of_the_run_that_was_opened
    def read_step(self, name: str, step: int) -> Tensor:
        if self._is_tied(name):
            return self.read_step(W_E, step).mT
        return self._one(step).read(name) if self._is_growing(step) else self._trained.read_step(name, step)

    @_of_the_run_that_was_opened
    def read_stack(self, name: str, steps: Sequence[int]) -> Tensor:
        if self._is_tied(name):
            return self.read_stack(W_E, steps).mT
        if self.finished and tuple(steps) == self.steps:
            return self._trained.read(name)
        return torch.stack([self.read_step(name, step) for step in steps])

    @_of_the_run_that_was_opened
    def optimizer(self, step: int) -> dict[str, Tensor] | None:
        if self._is_growing(step):
            file = self._one(step)
            names = [n for n in file.entries if n.startswith(OPTIMIZER_PREFIX)]
            return {n.removeprefix(OPTIMIZER_PREFIX): file.read(n) for n in names} or None
        if OPTIMIZER not in self.manifest.pieces:
            return None
        file = SealedFile.open(self.path / OPTIMIZER)
        return {name: file.read_step(name, step) for name in file.entries} if step in file.steps else None

    def _require_unchanged(self) -> None:
        if self.finished and Manifest.read(self.path) != self.manifest:
            raise InputError(f"{self.path}: expected the run as it was opened, got more steps: load it again")

    def _is_growing(self, step: int) -> bool:
        """Whether a step is a file of its own; a run may have finished since it was opened."""
        if not self.finished and not step_path(self.path, step).exists():
            self.manifest = Manifest.read(self.path)
            self.finished = self.manifest.state == "finished"
            if self.finished:
                for name in ("steps", "fingerprint"):
                    self.__dict__.pop(name, None)
        return not self.finished

    def _one(self, step: int) -> SealedFile:
        return SealedFile.open(step_path(self.path, step))

    def _is_tied(self, name: str) -> bool:
        return self.model_config.tied_output and name == W_U


def closest(steps: Sequence[int], step: int) -> int:
    """The stored step closest to `step`; of two, the earlier."""
    distances = np.abs(np.asarray(steps) - step)
    return int(steps[int(distances.argmin())])


def expand(value: Shaped[Tensor, "*rest"], count: int) -> Shaped[Tensor, "step *rest"]:
    """The same tensor at every step, without a copy."""
    return value.expand(count, *value.shape)


def digest(content: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
