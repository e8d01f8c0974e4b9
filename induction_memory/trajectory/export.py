"""Writing one step as a folder like those of Hugging Face, with config.json and model.safetensors, and reading it.

model.safetensors has every parameter by its name in the HookedTransformer. config.json has the configuration of model,
task and training, the step, the SHA-256 of the weights and of those before training (null if unknown), whether the
step was kept rounded (rounded.py), and as `seal` the SHA-256 of all these fields. `load` reads such a folder as a
trajectory of one step.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from induction_memory.errors import DamagedError, InputError
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.architecture import model_from_dict
from induction_memory.task import registry
from induction_memory.trajectory.durable import make_folder, open_regular, piece_of, write_durably
from induction_memory.trajectory.folder import FolderSource
from induction_memory.trajectory.foreign import PlainSource
from induction_memory.trajectory.layout import CONFIG
from induction_memory.trajectory.manifest import digest
from induction_memory.trajectory.states import stored_names

WEIGHTS, MODEL_TYPE, VERSION = "model.safetensors", "induction_memory", 2


def write_export(
    source: FolderSource | PlainSource, step: int, state: dict[str, Tensor], initial: str | None, folder: Path
) -> None:
    """Write the state of a step. config.json is written last and completes the folder."""
    weights = {name: state[name].contiguous() for name in stored_names(source.model_config, state)}
    make_folder(folder)
    piece = write_durably(folder / WEIGHTS, [save(weights, {"format": "pt"})])
    config = {
        "model_type": MODEL_TYPE,
        "version": VERSION,
        "architectures": ["HookedTransformer"],
        "step": step,
        "model": source.model_config.to_dict(),
        "task": None if source.task is None else registry.to_dict(source.task),
        "train": source.train.to_dict(),
        "sha256": piece.sha256,
        "initial": initial,
        "rounded": step in source.rounded,
    }
    config = json.loads(json.dumps(config))
    text = json.dumps(config | {"seal": digest(config)}, indent=1)
    write_durably(folder / CONFIG, [text.encode() + b"\n"])


def is_export(folder: Path) -> bool:
    """Whether a folder looks like what `write_export` writes."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


class ExportSource(PlainSource):
    """The one step of an exported folder."""

    def __init__(self, path: Path) -> None:
        config = _read_config(path / CONFIG)
        self.path, self.parent = path, None
        try:
            self.model_config = self._given = model_from_dict(config["model"])
            self.task = None if config["task"] is None else registry.from_dict(config["task"])
            self.train = TrainConfig.from_dict(config["train"])
            self.initial_checksum = config.get("initial")
            self._sha256, self.fingerprint, step = config["sha256"], config["seal"], int(config["step"])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DamagedError(path / CONFIG, f"an invalid configuration ({error})") from error
        self.steps, self._files, self._last = (step,), {step: path / WEIGHTS}, None
        self.rounded = self.steps if config.get("rounded") else ()

    def _state(self, step: int) -> dict[str, Tensor]:
        if self._last is None and piece_of(self.path / WEIGHTS).sha256 != self._sha256:
            raise DamagedError(self.path / WEIGHTS, "content that differs from its SHA-256")
        return super()._state(step)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        with open_regular(path) as file:
            config = json.loads(file.read().decode())
        ours, version = config["model_type"] == MODEL_TYPE, config["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(path, "no configuration of this package") from error
    if ours and isinstance(version, int) and version > VERSION:
        raise InputError(f"{path}: expected version {VERSION} or older, got {version}: a newer package wrote it")
    if config.get("seal") != digest({key: value for key, value in config.items() if key != "seal"}):
        raise DamagedError(path, "a configuration that differs from its seal")
    return config
