"""Results kept beside a trajectory, so that asking again costs nothing.

A result is keyed by everything it depends on: the trajectory's content, the probe's name, its arguments, and the code
of the package that computes it. When any of them changes the key does, and the result is computed again; what is old
is never read. In a read-only folder, results are computed anew each time.

A file is the SHA-256 of its key and its content, a line end, and the table as Parquet: a damaged file, or one under
another's name, counts as not there.
"""

import contextlib
import hashlib
import io
import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from induction_memory.trajectory.durable import READABLE
from induction_memory.trajectory.layout import part_path
from induction_memory.trajectory.ownership import CACHE
from induction_memory.trajectory.trajectory import Trajectory

_CODE = ("probes", "memory", "model", "task")  # what a probe's value may depend on


def key(run: Trajectory, probe: str, arguments: dict[str, Any]) -> str:
    """SHA-256 of what the result depends on."""
    content = [run.fingerprint, probe, arguments, code_fingerprint()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def code_fingerprint() -> str:
    """SHA-256 of the source behind the probes, because the version does not change during development."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load(run: Trajectory, probe: str, arguments: dict[str, Any]) -> pd.DataFrame | None:
    """The result kept for exactly this question, or None."""
    name = key(run, probe, arguments)
    path = _path(run, name)
    try:
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        seal, payload = content[:64], content[65:]
        if seal != _seal(name, payload):  # damaged, cut short or another question's: as if it were not there
            return None
        return pd.read_parquet(io.BytesIO(payload))
    except (OSError, ValueError):
        return None


def save(run: Trajectory, probe: str, arguments: dict[str, Any], result: pd.DataFrame) -> None:
    """Keep a result; quietly not, if the folder is read-only or the disk is full."""
    name = key(run, probe, arguments)
    path = _path(run, name)
    part = part_path(path)
    buffer = io.BytesIO()
    result.to_parquet(buffer, index=False)
    payload = buffer.getvalue()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(_seal(name, payload) + b"\n" + payload)
        part.chmod(READABLE)  # whatever the umask: a group shares its runs
        os.replace(part, path)
        _remove_old_parts(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()


def _seal(name: str, payload: bytes) -> bytes:
    """SHA-256 of a key and of what is kept under it."""
    return hashlib.sha256(name.encode() + payload).hexdigest().encode()


def _remove_old_parts(folder: Path) -> None:
    """Remove what writers that were killed more than an hour ago have left."""
    for part in folder.glob("*.part"):
        if time.time() - part.stat().st_mtime > 3600:
            part.unlink(missing_ok=True)


def _path(run: Trajectory, name: str) -> Path:
    return run.path / CACHE / f"{name}.result"
