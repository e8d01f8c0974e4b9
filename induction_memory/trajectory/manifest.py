"""The files of a trajectory, and manifest.json: its kind, its origin, and the checksum of each file.

manifest.json           described below
metrics.jsonl           one line per step (rows.py)
frozen.safetensors      parameters that never change
grafts.safetensors      matrices to graft, in the order of train.grafts
trained.safetensors     once finished: every other parameter, [step, ...]
rounded.safetensors     in a thinned run: the steps that were kept rounded (tensors.py)
optimizer.safetensors   once finished: the optimiser's state, [step, ...]
steps/00000300.safetensors   while training: weights/NAME and the optimiser's optimizer/NAME of one step
latest.safetensors           while training: the latest state, to resume from
.PROCESS-NUMBER.part    a file that is being written
.lock                   held by the process that trains
.cache/                 kept results of analyses; it may be deleted at any time

The manifest has

    format, version   the kind of file and the version of the layout; another version is refused
    state             "training" or "finished"
    config            task, model and training; the task may be null in an imported one
    first_step        step of the first checkpoint: 0, or where a branch left its parent
    parent            for a branch: name, fingerprint and step of the parent run; else null
    threads           threads of the numerical library: the bits of a run depend on them; null if unknown
    versions          of Python and of the packages that computed it
    command, created  how and when it was started
    seconds           time spent on training, without the time between a kill and a resumption; null if unknown
    pieces            file -> SHA-256, size and, for a file of tensors, the seal of its header
    identity          a hash of what determines the bits of the run; its step files and metrics carry it too
    initial           SHA-256 of the weights before any training, null if they are not known
    seal              SHA-256 of all of the above, as JSON with sorted keys and no spaces

No random state is kept: each step's batch has its own stream, from the seed and the step's number. Only regular files
are read, because a device or a pipe may never end.
"""

import errno
import hashlib
import json
import os
import platform
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from io import BufferedReader
from pathlib import Path
from typing import Any

import induction_memory
from induction_memory.errors import DamagedError, InputError, StorageError
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.files import Bytes, not_written, replace_file
from induction_memory.model.config import model_from_dict
from induction_memory.task import protocol
from induction_memory.task.corpus import SHIPPED

MANIFEST = "manifest.json"
CONFIG = "config.json"
"""The configuration of an exported step, or of a checkpoint in a series."""
METRICS = "metrics.jsonl"
FROZEN = "frozen.safetensors"
GRAFTS = "grafts.safetensors"
TRAINED = "trained.safetensors"
OPTIMIZER = "optimizer.safetensors"
ROUNDED = "rounded.safetensors"
LATEST = "latest.safetensors"
LOCK = ".lock"
STEPS = "steps"
STATE_WEIGHTS, STATE_OPTIMIZER = "weights/", "optimizer/"
"""Prefixes of the names in the file of a single step."""

PIECES = (FROZEN, GRAFTS, TRAINED, ROUNDED, OPTIMIZER, METRICS)
"""The files that a manifest may list."""
FILES = (MANIFEST, LATEST, *PIECES)
STEP_FILE = re.compile(r"\d{8,}\.safetensors")

FORMAT = "induction_memory trajectory"
VERSION = 4
_PACKAGES = ("torch", "numpy", "transformer-lens", "safetensors")
_LARGEST = 100_000_000
_READING = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def step_path(folder: Path, step: int) -> Path:
    """The file of one step while training."""
    return folder / STEPS / f"{step:08d}.safetensors"


def step_files(folder: Path) -> dict[int, Path]:
    """The steps stored in single files, in order, and the file of each."""
    found = {int(path.stem): path for path in (folder / STEPS).glob("*.safetensors") if STEP_FILE.fullmatch(path.name)}
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Piece:
    """The checksum and size that a file must have."""

    sha256: str
    """SHA-256 of its content."""
    size: int
    """In bytes."""
    seal: str | None = None
    """The seal of the header of a file of tensors (tensors.py), which is quicker to check."""


def write_piece(path: Path, chunks: Iterable[Bytes], seal: str | None = None) -> Piece:
    """Write the chunks to `path`, all of them or none; returns checksum and size."""
    digest, size = hashlib.sha256(), 0

    def counted() -> Iterator[Bytes]:
        nonlocal size
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    try:
        replace_file(path, counted())
    except OSError as error:
        raise not_written(path, error) from error
    return Piece(digest.hexdigest(), size, seal)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a DamagedError if there is none."""
    try:
        descriptor = os.open(path, _READING)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(path, "no such file") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedError(path, "a link that leads nowhere") from error
        raise StorageError(f"{path}: expected to read it, got {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(path, "no regular file")
    return os.fdopen(descriptor, "rb")


def piece_of(path: Path) -> Piece:
    """The present checksum and size of a file."""
    with open_regular(path) as file:
        return Piece(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def check_piece(path: Path, piece: Piece) -> None:
    """Raise a DamagedError unless the whole content of a file matches the piece."""
    found = piece_of(path)
    if found.size != piece.size:
        raise DamagedError(path, f"{found.size} bytes instead of {piece.size}")
    if found.sha256 != piece.sha256:
        raise DamagedError(path, "content that differs from its SHA-256")


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    state: str
    config: dict[str, Any]
    first_step: int = 0
    parent: dict[str, Any] | None = None
    threads: int | None = None
    versions: dict[str, str] = field(default_factory=dict)
    command: str | None = None
    created: str = ""
    seconds: float | None = None
    pieces: dict[str, Piece] = field(default_factory=dict)
    identity: str = ""
    initial: str | None = None

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    @property
    def key(self) -> int:
        """The start value of the checksums of the run's metrics (rows.py)."""
        return zlib.crc32(self.identity.encode())

    def write(self, folder: Path) -> None:
        """Write the manifest into the folder, flushed to the disk."""
        write_sealed(folder / MANIFEST, FORMAT, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and check the manifest of a folder."""
        path = folder / MANIFEST
        values = read_sealed(path, FORMAT)
        if values.keys() != _KINDS.keys():
            raise DamagedError(path, f"a manifest with other fields than {', '.join(_KINDS)}")
        for name, value in values.items():
            if type(value) not in _KINDS[name] or (type(value) is int and not 0 <= value < 2**63):
                raise DamagedError(path, f"a manifest whose {name} is {repr(value)[:80]}")
        config = values["config"]
        whole = config.keys() == {"task", "model", "train"} and isinstance(config["train"], dict)
        if not whole or not values["pieces"].keys() <= set(PIECES):
            raise DamagedError(path, "a manifest with other parts of a configuration, or other files")
        try:
            pieces = {name: Piece(**piece) for name, piece in values["pieces"].items()}
        except TypeError as error:
            raise DamagedError(path, "a manifest whose pieces cannot be read") from error
        return cls(**{**values, "pieces": pieces})

    def part(self, folder: Path, name: str) -> Any:
        """Task, model or train of the configuration; a DamagedError if its values are invalid.

        A task that is not registered is an InputError: another program may have defined it.
        """
        values = self.config[name]
        if name == "task" and isinstance(values, dict) and isinstance(values.get("name"), str):
            protocol.task_type(values["name"])
        try:
            if name == "model":
                return model_from_dict(values)
            if name == "train":
                return TrainConfig.from_dict(values)
            if values is None:
                return None
            corpus = values.get("corpus", {})
            if not isinstance(corpus, dict) and corpus not in SHIPPED:  # no other file is read
                raise ValueError("task.corpus: expected its counts, got the name of a file")
            return protocol.from_dict(values)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DamagedError(folder / MANIFEST, f"an invalid configuration ({error})") from error


_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "state": (str,),
    "config": (dict,),
    "first_step": (int,),
    "parent": (dict, _NONE),
    "threads": (int, _NONE),
    "versions": (dict,),
    "command": (str, _NONE),
    "created": (str,),
    "seconds": (int, float, _NONE),
    "pieces": (dict,),
    "identity": (str,),
    "initial": (str, _NONE),
}


def provenance(command: str | None, threads: int | None) -> dict[str, Any]:
    """The fields on how, when and with which packages a trajectory is made."""
    versions = {"python": platform.python_version(), "induction-memory": induction_memory.__version__}
    for name in _PACKAGES:
        versions[name] = metadata.version(name)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"versions": versions, "command": command, "created": created, "threads": threads}


def digest(content: Any) -> str:
    """SHA-256 of plain values, as JSON with sorted keys and no spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_sealed(path: Path, kind: str, values: dict[str, Any]) -> None:
    """Write values as JSON, with the kind of the file, the version of the format and a seal."""
    values = {"format": kind, "version": VERSION, **values}
    write_piece(path, [json.dumps(values | {"seal": digest(values)}, indent=1).encode() + b"\n"])


def read_sealed(path: Path, kind: str) -> dict[str, Any]:
    """The values that `write_sealed` has written."""
    with open_regular(path) as file:
        text = file.read(_LARGEST)
    try:
        values = json.loads(text.decode())
        seal = values.pop("seal")
        sealed = seal == digest(values)
        found, version = values.pop("format"), values.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(path, "a file that cannot be read") from error
    if found == kind and version != VERSION:
        raise InputError(f"{path}: expected format version {VERSION}, got {version!r}: another version wrote it")
    if found != kind or not sealed:
        raise DamagedError(path, "content that differs from its seal")
    return values
