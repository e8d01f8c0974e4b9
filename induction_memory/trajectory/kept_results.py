"""Results of single checkpoints, kept on the disk as soon as they are computed: a killed analysis resumes from them.

A result is a few tables by name. Its file is named by the step and by a hash of what it depends on: the question and
its settings, the checkpoint's files, and the source of this package. A damaged file is computed again
(`kept_files.py`).

Results kept on the disk, each with a checksum.

A file holds the SHA-256 of its key and its content, a line end, and the content. A damaged or misnamed file counts as
missing. Each is written under a temporary name and then renamed. In a read-only folder or on a full disk nothing is
kept, and results are computed again.
"""

import contextlib
import hashlib
import io
import json
import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from induction_memory.files import replace_file
from induction_memory.trajectory.checkpoint_files import Checkpoint

_OLD = 3600.0
"""Seconds after which a temporary file counts as left by a killed process."""


def read(path: Path, key: str) -> bytes | None:
    """The content kept under a key, or None."""
    try:
        found = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    except OSError:
        return None
    seal, content = found[:64], found[65:]
    return content if seal == _seal(key, content) else None


def write(path: Path, key: str, content: bytes) -> None:
    """Keep the content under a key, if the disk allows it."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [_seal(key, content) + b"\n" + content])
        _remove_old_parts(path.parent)


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()


def _remove_old_parts(folder: Path) -> None:
    for part in folder.glob("*.part"):
        if time.time() - part.stat().st_mtime > _OLD:
            part.unlink(missing_ok=True)


Tables = Mapping[str, pd.DataFrame]


def load(folder: Path, key: str, one: Checkpoint) -> dict[str, pd.DataFrame] | None:
    """The tables kept for this question about this checkpoint, or None."""
    name = _name(key, one)
    content = read(folder / name, name)
    if content is None:
        return None
    sizes, _, tables = content.partition(b"\n")
    found, start = {}, 0
    for table, size in json.loads(sizes).items():
        found[table] = pd.read_parquet(io.BytesIO(tables[start : start + size]))
        start += size
    return found


def save(folder: Path, key: str, one: Checkpoint, tables: Tables) -> None:
    """Keep the tables of one checkpoint, as Parquet, after a line of JSON with the size of each."""
    parts = {}
    for table, rows in tables.items():
        content = io.BytesIO()
        rows.to_parquet(content, index=False)
        parts[table] = content.getvalue()
    sizes = json.dumps({table: len(part) for table, part in parts.items()}).encode()
    name = _name(key, one)
    write(folder / name, name, b"\n".join([sizes, b"".join(parts.values())]))


def _name(key: str, one: Checkpoint) -> str:
    content = f"{key}\n{one.fingerprint}\n{_code()}"
    return f"step-{one.label.step}-{hashlib.sha256(content.encode()).hexdigest()}.result"


@cache
def _code() -> str:
    """SHA-256 of the package's source, because the version does not change during development."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key_of(settings: Mapping[str, Any]) -> str | None:
    """The key of a result with these settings; None if one is a function, whose code the key would not reflect."""
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
