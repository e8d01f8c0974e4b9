"""manifest.json: what a trajectory is, where it comes from, and what each of its files must be.

    format, version   what this is, and the version of the layout; a newer version is refused
    state             "training" or "finished"
    config            task, model and training; the task may be null in an imported one
    first_step        step of the first checkpoint: 0, or where a branch left its parent
    parent            of a branch: name, fingerprint and step of the run it left; else null
    rows              lines in metrics.jsonl once finished
    threads           threads of the numerical library: the bits of a run depend on them
    versions          of Python and of the packages that computed it
    command, created  how and when it was started
    seconds           time spent on training, without what lies between a kill and a resumption; null if unknown
    pieces            file -> SHA-256 and size
    seal              SHA-256 of all of the above, as JSON with sorted keys and no spaces

No random state is kept: each step's batch has a stream of its own, from the seed and the step's number.
"""

import hashlib
import json
import platform
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from induction_memory.errors import InputError
from induction_memory.trajectory.durable import Piece, write_durably
from induction_memory.trajectory.sealed import DamagedError

FORMAT = "induction_memory trajectory"
VERSION = 1
NAME = "manifest.json"
_PACKAGES = ("induction-memory", "torch", "numpy", "transformer-lens", "safetensors")


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

    def replace(self, **changes: Any) -> "Manifest":
        return replace(self, **changes)

    def write(self, folder: Path) -> None:
        """Put the manifest into the folder, durably: from here on the folder is what it says."""
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION}
        values |= {f.name: getattr(self, f.name) for f in fields(self)}
        values["pieces"] = {name: piece.to_dict() for name, piece in self.pieces.items()}
        values["seal"] = _seal(values)
        write_durably(folder / NAME, [json.dumps(values, indent=1).encode() + b"\n"])

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and check the manifest of a folder."""
        path = folder / NAME
        try:
            values = json.loads(path.read_bytes().decode())
            known = values["format"] == FORMAT and isinstance(values["version"], int)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(path, "a manifest that cannot be read") from error
        if known and values["version"] > VERSION:
            raise InputError(
                f"{path}: expected format version {VERSION} or older, got {values['version']}: "
                f"a newer induction_memory wrote it"
            )
        if values.pop("seal", None) != _seal(values) or not known:
            raise DamagedError(path, "a manifest that differs from its seal")
        del values["format"], values["version"]
        values["pieces"] = {name: Piece(**piece) for name, piece in values["pieces"].items()}
        return cls(**values)


def provenance(command: str | None, threads: int | None) -> dict[str, Any]:
    """The fields that say how, when and with what a trajectory is made."""
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": threads,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _seal(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
