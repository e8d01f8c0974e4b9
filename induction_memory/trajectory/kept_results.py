"""Results of single checkpoints, kept on the disk as soon as they are there: a killed analysis goes on where it was.

A result is a few tables by name. Its folder is named by the step and by a hash of what it depends on: the question and
its settings, the checkpoint's files, and the source of this package. A result is written beside its place and moved
there in one operation, so it is whole or not there. In a read-only folder, results are computed anew.
"""

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from induction_memory.trajectory.checkpoint_files import Checkpoint

Tables = Mapping[str, pd.DataFrame]


def load(folder: Path, key: str, one: Checkpoint) -> dict[str, pd.DataFrame] | None:
    """The tables kept for this question about this checkpoint, or None."""
    place = _place(folder, key, one)
    try:
        found = {path.stem: pd.read_parquet(path) for path in sorted(place.glob("*.parquet"))}
    except (OSError, ValueError):
        return None
    return found or None


def save(folder: Path, key: str, one: Checkpoint, tables: Tables) -> None:
    """Keep the tables of one checkpoint."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder))
        try:
            for name, table in tables.items():
                table.to_parquet(part / f"{name}.parquet", index=False)
            place = _place(folder, key, one)
            shutil.rmtree(place, ignore_errors=True)
            part.replace(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _place(folder: Path, key: str, one: Checkpoint) -> Path:
    content = f"{key}\n{one.fingerprint}\n{_code()}"
    return folder / f"step-{one.label.step}-{hashlib.sha256(content.encode()).hexdigest()[:24]}"


@cache
def _code() -> str:
    """SHA-256 of the package's source, because the version does not change during development."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key_of(settings: Mapping[str, Any]) -> str | None:
    """The key of a result with these settings; None if one is a function, since a change in it could not be seen."""
    try:
        return hashed(settings)
    except _FunctionError:
        return None


class _FunctionError(Exception):
    """A setting is a function or a module."""


def hashed(value: Any) -> str:
    """A text that tells settings apart, tensors by their content: for the key of a result.

    >>> hashed({"kind": "mean", "heads": ["L1H1"]}) == hashed({"heads": ["L1H1"], "kind": "mean"})
    True
    """
    if isinstance(value, Tensor | np.ndarray):
        data = torch.as_tensor(value).detach().cpu().contiguous()
        head = repr((tuple(data.shape), str(data.dtype))).encode()
        return hashlib.sha256(head + data.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        return hashed({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, Mapping):
        return repr(sorted((str(name), hashed(one)) for name, one in value.items()))
    if isinstance(value, list | tuple):
        return repr([hashed(one) for one in value])
    if callable(value):
        raise _FunctionError
    return repr(value)
