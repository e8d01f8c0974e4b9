"""Results kept beside a trajectory, so that they are computed only once.

A result is keyed by everything it depends on: the trajectory's content, the probe's name, its arguments, and the code
of the package that computes it. When any of them changes, so does the key, and the result is computed again. A file
holds the heads as a line of JSON, then the values [step, head] in double precision, with a checksum
(`trajectory/kept_files.py`).
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from induction_memory.trajectory import kept_files
from induction_memory.trajectory.ownership import CACHE
from induction_memory.trajectory.trajectory import Trajectory

CODE = ("task", "memory", "model", "runner", "experiment", "trajectory", "subject", "probes")
"""The rooms that a probe's value may depend on."""


def key(run: Trajectory, probe: str, arguments: dict[str, Any]) -> str:
    """SHA-256 of what the result depends on."""
    content = [run.fingerprint, probe, arguments, code_fingerprint()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def code_fingerprint() -> str:
    """SHA-256 of the source behind the probes, because the version does not change during development."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load(
    run: Trajectory, probe: str, arguments: dict[str, Any]
) -> tuple[Float[np.ndarray, "step head"], list[str]] | None:
    """The values kept for this probe and these arguments, with the names of their heads, or None."""
    name = key(run, probe, arguments)
    content = kept_files.read(_path(run, name), name)
    if content is None:
        return None
    heads, _, values = content.partition(b"\n")
    names = json.loads(heads)
    return np.frombuffer(values, dtype="<f8").reshape(-1, len(names)).copy(), names


def save(
    run: Trajectory,
    probe: str,
    arguments: dict[str, Any],
    values: Float[np.ndarray, "step head"],
    heads: Sequence[str],
) -> None:
    """Keep a result; do nothing if the folder is read-only or the disk is full."""
    name = key(run, probe, arguments)
    kept_files.write(_path(run, name), name, json.dumps(list(heads)).encode() + b"\n" + values.astype("<f8").tobytes())


def _path(run: Trajectory, name: str) -> Path:
    return run.path / CACHE / f"{name}.result"
