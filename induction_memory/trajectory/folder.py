"""Where a trajectory's numbers come from: a folder of this package's format, finished or still growing.

A source knows the steps, reads one parameter at one step or over many, and checks what it reads: every file against the
manifest, every step file against its step and its run. `foreign.py` has the source for what others saved, with the same
attributes.
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
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.layout import (
    FROZEN,
    METRICS,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    ROUNDED,
    TRAINED,
    step_path,
    stored_steps,
)
from induction_memory.trajectory.manifest import Manifest, digest
from induction_memory.trajectory.states import W_E, W_U, stored_names
from induction_memory.trajectory.tensors import RoundedFile, SealedFile


def _of_the_run_as_it_is(read: Callable[..., Any]) -> Callable[..., Any]:
    """Read once more if a file was missing or had changed because the run has finished in the meantime."""

    @wraps(read)
    def careful(self: "FolderSource", *arguments: Any) -> Any:
        try:
            return read(self, *arguments)
        except DamagedError:
            if not self._has_moved_on():
                raise
            return read(self, *arguments)

    return careful


class FolderSource:
    """A folder that `writer.py` made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest.read(path)
        self.task, self.model_config, self.train = self.manifest.parts(path)
        self.parent = self.manifest.parent
        self.initial_checksum = self.manifest.initial

    @property
    def identity(self) -> str | None:
        return self.manifest.identity

    @property
    def key(self) -> int:
        return self.manifest.key

    @property
    def finished(self) -> bool:
        return self.manifest.state == "finished"

    @property
    def trained_from_seed(self) -> bool:
        """Whether the run began with the weights of its configuration and seed, without a graft at its first step."""
        trained_here = not self.finished or METRICS in self.manifest.pieces
        grafted = any(rule.start == 0 for rule in self.train.graft_rules)
        return trained_here and self.parent is None and self.manifest.first_step == 0 and not grafted

    @cached_property
    def _frozen(self) -> SealedFile:
        return self._piece(FROZEN)

    @cached_property
    def _trained(self) -> SealedFile:
        return self._piece(TRAINED)

    @cached_property
    def _optimizer(self) -> SealedFile | None:
        return self._piece(OPTIMIZER) if OPTIMIZER in self.manifest.pieces else None

    @cached_property
    def rounding(self) -> RoundedFile | None:
        """The file of the steps that are kept rounded."""
        return RoundedFile(self.path, self.manifest) if ROUNDED in self.manifest.pieces else None

    @property
    def rounded(self) -> tuple[int, ...]:
        """The steps that are kept rounded."""
        return () if self.rounding is None else self.rounding.steps

    @property
    def steps(self) -> tuple[int, ...]:
        return self._steps()

    @_of_the_run_as_it_is
    def _steps(self) -> tuple[int, ...]:
        if "steps" not in self._kept:
            exact = self._trained.steps if self.finished else stored_steps(self.path)
            self._kept["steps"] = tuple(sorted({*exact, *self.rounded}))
        return self._kept["steps"]

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """What has been read of the run in its present state."""
        return {}

    @cached_property
    def frozen(self) -> tuple[str, ...]:
        tied = (W_U,) if self.model_config.tied_output and W_E in self._frozen.entries else ()
        return (*self._frozen.entries, *tied)

    @cached_property
    def moving(self) -> tuple[str, ...]:
        if self.finished:
            names = tuple(self._trained.entries)
        else:
            assert self.task is not None, "a run that trains has a task"
            config = RunConfig(self.task, self.model_config, self.train)
            names = stored_names(self.model_config, config.moving_parameters)
        return names + ((W_U,) if self.model_config.tied_output and W_E in names else ())

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every stored parameter."""
        frozen = {name: entry.shape for name, entry in self._frozen.entries.items()}
        return frozen | {
            name: self.model_config.shapes[name] for name in self.moving if name in self.model_config.shapes
        }

    @property
    def fingerprint(self) -> str:
        pieces = {name: piece.sha256 for name, piece in self.manifest.pieces.items()}
        if "size" not in self._kept:
            lines = self.path / METRICS
            self._kept["size"] = lines.stat().st_size if lines.exists() else 0
        growing = [] if self.finished else [self.steps, self._kept["size"]]
        return digest([self.manifest.config, self.manifest.first_step, pieces, growing])

    @_of_the_run_as_it_is
    def rows(self) -> list[dict[str, Any]]:
        return row_files.of(self.path, self.manifest)

    def read_frozen(self, name: str) -> Tensor:
        return self._frozen.read(W_E).mT if self._is_tied(name) else self._frozen.read(name)

    @_of_the_run_as_it_is
    def read_step(self, name: str, step: int) -> Tensor:
        if self._is_tied(name):
            return self.read_step(W_E, step).mT
        if self.rounding is not None and step in self.rounded:
            return self.rounding.read_step(name, step, self.model_config.shapes[name])
        return self._trained.read_step(name, step) if self.finished else self._one(step).read(name)

    @_of_the_run_as_it_is
    def read_stack(self, name: str, steps: Sequence[int]) -> Tensor:
        if self._is_tied(name):
            return self.read_stack(W_E, steps).mT
        if self.finished and tuple(steps) == self._trained.steps:
            return self._trained.read(name)
        return torch.stack([self.read_step(name, step) for step in steps])

    @_of_the_run_as_it_is
    def optimizer(self, step: int) -> dict[str, Tensor] | None:
        if step in self.rounded:
            return None
        if not self.finished:
            file = self._one(step)
            names = [n for n in file.entries if n.startswith(OPTIMIZER_PREFIX)]
            return {n.removeprefix(OPTIMIZER_PREFIX): file.read(n) for n in names} or None
        file = self._optimizer
        if file is None or step not in file.steps:
            return None
        return {name: file.read_step(name, step) for name in file.entries}

    def _has_moved_on(self) -> bool:
        """Whether the run has changed its state since it was opened; a finished one that changed is refused."""
        now = Manifest.read(self.path)
        if now == self.manifest:
            return False
        if self.finished:
            raise InputError(f"{self.path}: expected the run as it was opened, got more steps: load it again")
        self.manifest = now
        for name in ("_kept", "_trained", "_optimizer"):
            self.__dict__.pop(name, None)
        return True

    def _piece(self, name: str) -> SealedFile:
        return SealedFile.open_piece(self.path / name, self.manifest.pieces.get(name))

    def _one(self, step: int) -> SealedFile:
        return SealedFile.open_step(step_path(self.path, step), self.manifest.identity, step)

    def _is_tied(self, name: str) -> bool:
        return self.model_config.tied_output and name == W_U


def closest(steps: Sequence[int], step: int) -> int:
    """The stored step closest to `step`; the earlier one if two are equally close."""
    distances = np.abs(np.asarray(steps) - step)
    return int(steps[int(distances.argmin())])


def expand(value: Shaped[Tensor, "*rest"], count: int) -> Shaped[Tensor, "step *rest"]:
    """The same tensor at every step, without a copy."""
    return value.expand(count, *value.shape)
