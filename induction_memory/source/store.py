"""The one place of the package that keeps results on the disk.

A file holds the SHA-256 of its key and content, a line end, a line of JSON with the size of each table, and the tables
as Parquet. A damaged or misnamed file counts as missing. In a read-only folder or on a full disk, results are
recomputed.

The key of a result has everything that it depends on: the identity of the source at a step, the name and settings of
the measure, the sequences, the task, and the package's code. Results that depend on a user's own code are not kept.
"""

import contextlib
import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from induction_memory.errors import InputError, StorageError
from induction_memory.files import write_file

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Store:
    """A folder of results."""

    folder: Path

    def get(self, key: str) -> dict[str, pd.DataFrame] | None:
        """The tables kept under a key; None if they are missing or damaged."""
        path = self._path(key)
        try:
            found = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        except OSError:
            return None
        seal, _, content = found.partition(b"\n")
        if seal != _seal(key, content):
            return None
        sizes, _, parts = content.partition(b"\n")
        tables, start = {}, 0
        for name, size in json.loads(sizes).items():
            tables[name] = pd.read_parquet(io.BytesIO(parts[start : start + size]))
            start += size
        return tables

    def put(self, key: str, tables: Tables) -> None:
        """Keep the tables under a key, if the disk allows it."""
        sizes, parts = dict[str, int](), list[bytes]()
        for name, table in tables.items():
            parts.append(table.to_parquet(index=False))
            sizes[name] = len(parts[-1])
        content = json.dumps(sizes).encode() + b"\n" + b"".join(parts)
        with contextlib.suppress(InputError, StorageError):
            write_file(self._path(key), _seal(key, content) + b"\n" + content)

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.result"


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()


@cache
def code() -> str:
    """SHA-256 of the package's source, because the version does not change during development."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def key_of(settings: Any) -> str | None:
    """A text that identifies settings, with tensors by their content; None if they depend on a user's own code.

    >>> key_of({"kind": "mean", "heads": ["L1H1"]}) == key_of({"heads": ["L1H1"], "kind": "mean"})
    True
    >>> key_of({"kind": print}) is None
    True
    """
    try:
        return _text(settings)
    except _OwnCodeError:
        return None


class _OwnCodeError(Exception):
    """A setting is a function, a module, or of a class that the package does not define."""


def _text(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        data = torch.as_tensor(np.array(value) if isinstance(value, np.ndarray) else value).detach().cpu().contiguous()
        head = repr((tuple(data.shape), str(data.dtype))).encode()
        return hashlib.sha256(head + data.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        if not type(value).__module__.startswith("induction_memory."):
            raise _OwnCodeError
        return type(value).__name__ + _text({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, Mapping):
        return repr(sorted([(str(name), _text(one)) for name, one in value.items()]))
    if isinstance(value, list | tuple):
        return repr(list(map(_text, value)))
    if isinstance(value, str | int | float | np.generic | Path | None):
        return repr(value)
    raise _OwnCodeError
