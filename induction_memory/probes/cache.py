"""Results kept beside a trajectory, so that the second look is free.

A result is keyed by everything it depends on: the trajectory's content, the probe's name, its arguments, and the code
of the package that computes it. When any of them changes the key does, and the result is computed again; what is old
is never read. A folder that cannot be written costs nothing but the time.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from induction_memory.trajectory.trajectory import Trajectory

FOLDER = Path(".cache") / "probes"
_CODE = ("probes", "memory", "model", "task")  # what a probe's value may depend on


def key(run: Trajectory, probe: str, arguments: dict[str, Any]) -> str:
    """SHA-256 of what the result depends on."""
    content = [run.fingerprint, probe, arguments, code_fingerprint()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def code_fingerprint() -> str:
    """SHA-256 of the code behind the probes: finer than a version, which stands still while one works on it."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load(run: Trajectory, probe: str, arguments: dict[str, Any]) -> pd.DataFrame | None:
    """The result kept for exactly this question, or None."""
    path = _path(run, probe, arguments)
    if not path.is_file():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):  # unreadable or cut short: as if it were not there
        return None


def save(run: Trajectory, probe: str, arguments: dict[str, Any], result: pd.DataFrame) -> None:
    """Keep a result; quietly not, where the folder is read-only."""
    path = _path(run, probe, arguments)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        result.to_parquet(temporary, index=False)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _path(run: Trajectory, probe: str, arguments: dict[str, Any]) -> Path:
    return run.path / FOLDER / f"{key(run, probe, arguments)}.parquet"
