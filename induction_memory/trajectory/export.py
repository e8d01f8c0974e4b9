"""One step exported as a Hugging Face folder, and folders of plain state dicts that another program saved.

An exported step is config.json and model.safetensors. The second has every parameter by its name in the
HookedTransformer. The first has the configuration of model, task and training, the step, the SHA-256 of the weights and
of the weights before training (null if unknown), whether the step was kept rounded (tensors.py), and a seal.

A folder of state dicts has one file per step, which ends in .safetensors, .pt or .pth. The last number in a file's name
is its step (`model-300.pt`). Pickled files are read with `weights_only`, so nothing in them is executed. Parameters
have HookedTransformer's names. Buffers such as masks are ignored. The files do not say which parameters were frozen, so
all count as trained. Only shapes can be checked.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from induction_memory.errors import DamagedError, InputError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.files import make_folder, require_folder
from induction_memory.model.config import AnyModel, Architecture, model_from_dict
from induction_memory.task import protocol
from induction_memory.task.protocol import Task
from induction_memory.trajectory.checkpoint_files import content, file_state
from induction_memory.trajectory.lock import CACHE
from induction_memory.trajectory.manifest import CONFIG, digest, piece_of, read_sealed, write_piece, write_sealed
from induction_memory.trajectory.tensors import checksum, stored_names, with_tied
from induction_memory.trajectory.trajectory import Trajectory

_BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")
_ENDINGS = (".safetensors", ".pt", ".pth")
WEIGHTS, MODEL_TYPE, FORMAT = "model.safetensors", "induction_memory", "induction_memory step"


class PlainFolder(Trajectory):
    """A folder of state dicts. To get one parameter, the whole file is read; the last file is kept in memory."""

    def __init__(self, path: Path, model: AnyModel, task: Task | None = None) -> None:
        files = _numbered(path)
        self._open(path, files, model, task, TrainConfig(steps=max(files)))
        self.model_config = _all_trained(model)

    @cached_property
    def fingerprint(self) -> str:
        return digest([self.model_config.to_dict(), *map(self.identity, self._files)])

    def identity(self, step: int) -> str:
        """The step and the content of its file, as it is now."""
        path = self._files[step]
        return f"{path.name} {content(path, *file_state(path))} {digest(self.model_config.to_dict())} {step}"

    def _open(self, path: Path, files: dict[int, Path], model: AnyModel, task: Task | None, train: TrainConfig) -> None:
        self.path, self.name, self.keep = path, path.resolve().name, path / CACHE
        self.model_config, self.task, self.train = model, task, train
        self.steps, self.rounded = np.array(sorted(files), dtype=np.int64), np.array([], dtype=np.int64)
        self.finished, self.parent, self.frozen = True, None, ()
        self.initial_checksum = None  # unknown: the seed in `train` is a default
        self._given, self._files = model, files
        self._last: tuple[tuple[int, ...], dict[str, Tensor]] | None = None

    @cached_property
    def moving(self) -> tuple[str, ...]:
        return tuple(self._read(int(self.steps[0])))

    def rows(self) -> list[dict[str, Any]]:
        return []

    def read_step(self, name: str, step: int) -> Tensor:
        return self._read(step)[name]

    def read_stack(self, name: str, steps: Sequence[int]) -> Tensor:
        return torch.stack([self._read(step)[name] for step in steps])

    def stored_optimizer(self, step: int) -> dict[str, Tensor] | None:
        return None

    def _read(self, step: int) -> dict[str, Tensor]:
        """Every parameter at one step."""
        now = step, *file_state(self._files[step])
        if self._last is None or self._last[0] != now:
            self._last = now, with_tied(self._given, read_state(self._files[step], self._given))
        return self._last[1]


def read_state(path: Path, config: AnyModel) -> dict[str, Tensor]:
    """The parameters in a .safetensors, .pt or .pth file, in float32, checked against the model's shapes."""
    try:
        if path.suffix == ".safetensors":
            values: Any = {name: value.clone() for name, value in load_file(path).items()}  # unmapped: files change
        else:
            values = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DamagedError(path, f"a file that cannot be read ({type(error).__name__})") from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise InputError(f"{path}: expected plain tensors, got a pickle that holds something else") from error
    named = isinstance(values, dict) and all(isinstance(v, Tensor) for v in values.values())
    require(named, str(path), "a state dict, parameter name -> tensor", type(values).__name__)
    state = {n: v.float() for n, v in values.items() if not n.endswith(_BUFFERS) and v.is_floating_point()}
    for name in state:
        known = name in config.shapes or name.replace(".b_", ".W_") in config.shapes
        require(known, str(path), "parameters of the model's configuration alone", name)
    for name, shape in config.shapes.items():
        require(name in state, str(path), f"the parameter {name}", "none")
        found = tuple(state[name].shape)
        require(found == shape, str(path), f"{name} of shape {shape} (the model's configuration)", found)
    return state


def _numbered(path: Path) -> dict[int, Path]:
    files: dict[int, Path] = {}
    for file in sorted(p for p in path.iterdir() if p.suffix in _ENDINGS):
        numbers = re.findall(r"\d+", file.stem)
        require(bool(numbers), str(file), "a name with the step's number in it", file.name)
        step = int(numbers[-1])
        require(step not in files, str(file), f"one file per step, but step {step} is also", files.get(step))
        files[step] = file
    require(bool(files), str(path), f"state dicts in files that end in {', '.join(_ENDINGS)}", "none")
    return files


def _all_trained(config: AnyModel) -> AnyModel:
    if isinstance(config, Architecture):
        return config.untrained()
    tied, fixed = config.tied_output, config.identity_queries
    names = [n for n in config.parameters if not (tied and n == "W_U") and not (fixed and n.startswith("W_Q"))]
    return config.replace(trained=tuple(names))


def configuration(run: Trajectory) -> dict[str, Any]:
    """Task, model and training as plain values; the task is None where it is not known."""
    task = None if run.task is None else protocol.to_dict(run.task)
    return {"task": task, "model": run.model_config.to_dict(), "train": run.train.to_dict()}


def write_export(run: Trajectory, step: int, out: str | Path) -> Path:
    """Write one step of a run into a new folder. config.json is written last and completes the folder."""
    folder = require_folder(out)
    empty = not folder.exists() or not any(folder.iterdir())
    require(empty, "out", "a new or an empty folder", repr(str(folder)))
    state, initial = run.state(step), run.initial()
    weights = {name: state[name].contiguous() for name in stored_names(run.model_config, state)}
    make_folder(folder)
    piece = write_piece(folder / WEIGHTS, [save(weights, {"format": "pt"})])
    config = {
        "model_type": MODEL_TYPE,
        "architectures": ["HookedTransformer"],
        "step": step,
        **configuration(run),
        "sha256": piece.sha256,
        "initial": None if initial is None else checksum(run.model_config, initial),
        "rounded": step in run.rounded,
    }
    write_sealed(folder / CONFIG, FORMAT, config)
    return folder


def is_export(folder: Path) -> bool:
    """Whether a folder looks like an export of `write_export`."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


class ExportedStep(PlainFolder):
    """The one step of an exported folder."""

    def __init__(self, path: Path) -> None:
        config = read_sealed(path / CONFIG, FORMAT)
        try:
            task = None if config["task"] is None else protocol.from_dict(config["task"])
            model, train = model_from_dict(config["model"]), TrainConfig.from_dict(config["train"])
            step, initial = int(config["step"]), config["initial"]
            self._sha256, rounded = config["sha256"], bool(config["rounded"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DamagedError(path / CONFIG, f"an invalid configuration ({error})") from error
        self._open(path, {step: path / WEIGHTS}, model, task, train)
        self.initial_checksum, self.fingerprint = initial, digest(config)
        self.rounded = self.steps[: int(rounded)]

    def _read(self, step: int) -> dict[str, Tensor]:
        if self._last is None and piece_of(self.path / WEIGHTS).sha256 != self._sha256:
            raise DamagedError(self.path / WEIGHTS, "content that differs from its SHA-256")
        return super()._read(step)
