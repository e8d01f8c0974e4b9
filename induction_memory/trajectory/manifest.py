"""manifest.json: what a trajectory is, where it comes from, and what each of its files must be.

    format, version   what this is, and the version of the layout; a newer version is refused
    state             "training" or "finished"
    config            task, model and training; the task may be null in an imported one
    first_step        step of the first checkpoint: 0, or where a branch left its parent
    parent            for a branch: name, fingerprint and step of the run it left; else null
    rows              lines in metrics.jsonl once finished
    threads           threads of the numerical library: the bits of a run depend on them
    versions          of Python and of the packages that computed it
    command, created  how and when it was started
    seconds           time spent on training, without the time between a kill and a resumption; null if unknown
    pieces            file -> SHA-256, size and, for a sealed file, the seal of its header
    identity          a hash of what determines the bits of the run, which its step files and metrics carry too
    initial           SHA-256 of the weights before any training, null if they are not known
    seal              SHA-256 of all of the above, as JSON with sorted keys and no spaces

Version 1 had no `identity`, no `initial` and no seals in `pieces`. Version 3 is version 2 with rounded.safetensors
among the pieces, and is written only in that case. No random state is kept: each step's batch has its own stream, from
the seed and the step's number.
"""

import hashlib
import json
import platform
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import induction_memory
from induction_memory.errors import DamagedError, InputError
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.architecture import AnyModel, model_from_dict
from induction_memory.task import protocol
from induction_memory.task.corpus import SHIPPED
from induction_memory.task.protocol import Task
from induction_memory.trajectory.durable import Piece, open_regular, write_durably
from induction_memory.trajectory.layout import MANIFEST, PIECES, ROUNDED

FORMAT = "induction_memory trajectory"
VERSION = 3
_PACKAGES = ("torch", "numpy", "transformer-lens", "safetensors")
_LARGEST = 100_000_000


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    state: str
    config: dict[str, Any]
    first_step: int = 0
    parent: dict[str, Any] | None = None
    rows: int | None = None
    threads: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    created: str = ""
    seconds: float | None = None
    pieces: dict[str, Piece] = field(default_factory=dict)
    identity: str | None = None
    initial: str | None = None

    def replace(self, **changes: Any) -> "Manifest":
        return replace(self, **changes)

    @property
    def key(self) -> int:
        """The start value of the checksums of the run's metrics (rows.py)."""
        return 0 if self.identity is None else zlib.crc32(self.identity.encode())

    def identified(self) -> "Manifest":
        """The manifest with the identity of its run, which more steps do not change."""
        train = {name: value for name, value in self.config["train"].items() if name != "steps"}
        pieces = {name: piece.sha256 for name, piece in self.pieces.items()}
        what = [self.config["task"], self.config["model"], train, self.first_step, self.parent, pieces, self.initial]
        return replace(self, identity=digest([*what, self.threads, self.versions]))

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder, durably. From then on it describes the folder."""
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION if ROUNDED in self.pieces else 2}
        values |= {f.name: getattr(self, f.name) for f in fields(self)}
        values["pieces"] = {name: piece.to_dict() for name, piece in self.pieces.items()}
        values["seal"] = _seal(values)
        write_durably(folder / MANIFEST, [json.dumps(values, indent=1).encode() + b"\n"])

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and check the manifest of a folder."""
        path = folder / MANIFEST
        with open_regular(path) as file:
            text = file.read(_LARGEST)
        try:
            values = json.loads(text.decode())
            known = values["format"] == FORMAT and isinstance(values["version"], int)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(path, "a manifest that cannot be read") from error
        if known and values["version"] > VERSION:
            raise InputError(
                f"{path}: expected format version {VERSION} or older, got {values['version']}: "
                f"a newer induction_memory wrote it"
            )
        if values.pop("seal", None) != _seal(values) or not known:
            raise DamagedError(path, "a manifest that differs from its seal")
        del values["format"], values["version"]
        _check(path, values)
        values["pieces"] = {name: Piece(**piece) for name, piece in values["pieces"].items()}
        return cls(**values)

    def parts(self, folder: Path) -> tuple[Task | None, AnyModel, TrainConfig]:
        """Task, model and training; a DamagedError if the configuration is invalid.

        A task that is not registered is an InputError: another program may have defined it.
        """
        task, model, train = (self.config[name] for name in ("task", "model", "train"))
        if task is not None and isinstance(task.get("name"), str):
            protocol.task_type(task["name"])
        try:
            corpus = {} if task is None else task.get("corpus", {})
            if not isinstance(corpus, dict) and corpus not in SHIPPED:
                raise ValueError("task.corpus: expected its counts, got the name of a file")
            made = None if task is None else protocol.from_dict(task)
            return made, model_from_dict(model), TrainConfig.from_dict(train)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DamagedError(folder / MANIFEST, f"an invalid configuration ({error})") from error


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _is_config(value: Any) -> bool:
    dicts = isinstance(value, dict) and value.keys() == {"task", "model", "train"}
    return (
        dicts and isinstance(value["task"], dict | None) and all(isinstance(value[n], dict) for n in ("model", "train"))
    )


def _are_pieces(value: Any) -> bool:
    return isinstance(value, dict) and all(
        name in PIECES
        and isinstance(piece, dict)
        and {"sha256", "size"} <= piece.keys() <= {"sha256", "size", "seal"}
        and _is_hash(piece["sha256"])
        and _is_whole(piece["size"])
        and (piece.get("seal") is None or _is_hash(piece["seal"]))
        for name, piece in value.items()
    )


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "state": lambda v: v in ("training", "finished"),
    "config": _is_config,
    "first_step": _is_whole,
    "parent": lambda v: isinstance(v, dict | None),
    "rows": lambda v: v is None or _is_whole(v),
    "threads": lambda v: v is None or (_is_whole(v) and 1 <= v <= 4096),
    "versions": lambda v: isinstance(v, dict) and all(isinstance(x, str) for x in v.values()),
    "command": lambda v: isinstance(v, str | None),
    "created": lambda v: isinstance(v, str),
    "seconds": lambda v: v is None or (isinstance(v, int | float) and not isinstance(v, bool)),
    "pieces": _are_pieces,
    "identity": lambda v: v is None or _is_hash(v),
    "initial": lambda v: v is None or _is_hash(v),
}


def _check(path: Path, values: dict[str, Any]) -> None:
    """Raise a DamagedError unless the fields are those of a manifest: anyone can compute a seal."""
    for name in ("state", "config", "pieces"):
        if name not in values:
            raise DamagedError(path, f"a manifest without {name!r}")
    for name, value in values.items():
        if name not in _CHECKS:
            raise DamagedError(path, f"a manifest with the unknown field {name!r}")
        if not _CHECKS[name](value):
            raise DamagedError(path, f"a manifest whose {name} is {repr(value)[:80]}")


def provenance(command: str | None, threads: int | None) -> dict[str, Any]:
    """The fields that say how, when and with what a trajectory is made."""
    own = {"python": platform.python_version(), "induction-memory": induction_memory.__version__}
    return {
        "versions": own | {name: metadata.version(name) for name in _PACKAGES},
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": threads,
    }


def digest(content: Any) -> str:
    """SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _seal(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
