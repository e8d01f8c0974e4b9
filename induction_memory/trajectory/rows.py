"""metrics.jsonl: one JSON object per step; each line ends with the CRC-32 of the text before it.

    {"step": 3, "loss": 1.25, ..., "crc32": 1234567890}

The checksum covers the line's bytes before `, "crc32"`. It starts from the run's key in the manifest instead of 0
(`zlib.crc32(text, key)`), so that lines of other runs are noticed. Steps have no gaps. Values that were not measured
are null. A kill or a power cut can leave an incomplete line; it and all lines after it count as not written.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from induction_memory import files
from induction_memory.errors import DamagedError
from induction_memory.trajectory.manifest import METRICS, Manifest, open_regular

_MARK = b', "crc32": '


def encode(row: Mapping[str, Any], key: int) -> bytes:
    """The line of a row."""
    text = json.dumps(dict(row), allow_nan=False).encode()[:-1]
    return text + _MARK + str(zlib.crc32(text, key)).encode() + b"}\n"


def decode(line: bytes, key: int) -> dict[str, Any] | None:
    """The row of a line with its line end; None if the line is incomplete, damaged or from another run."""
    text, mark, checksum = line.rpartition(_MARK)
    if not mark or checksum != str(zlib.crc32(text, key)).encode() + b"}\n":
        return None
    try:
        row = json.loads(text + b"}")
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("checkpoint"), bool)
    return row if whole else None


def of(folder: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """All rows of a run; the file is read once. While the run grows, the last line may be incomplete."""
    content, piece = read(folder), manifest.pieces.get(METRICS)
    if piece is not None and hashlib.sha256(content).hexdigest() != piece.sha256:
        what = "no such file" if not content else f"content of {len(content)} bytes that differs from its SHA-256"
        raise DamagedError(folder / METRICS, what)
    rows, begins = intact(content, manifest)
    rest = content[begins[-1] :]
    if rest and (manifest.finished or b"\n" in rest):
        raise DamagedError(folder / METRICS, f"a damaged or missing line {len(rows) + 1}")
    return rows


def read(folder: Path) -> bytes:
    """The content of the file; empty if there is no file."""
    path = folder / METRICS
    if not path.exists() and not path.is_symlink():
        return b""
    with open_regular(path) as file:
        return file.read()


def intact(content: bytes, manifest: Manifest) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows before the first line that is incomplete, damaged or out of order; where each row begins; that line."""
    rows: list[dict[str, Any]] = []
    begins, key = [0], manifest.key
    for line in content.splitlines(keepends=True):
        row = decode(line, key)
        if row is None or row["step"] != manifest.first_step + len(rows):
            break
        rows.append(row)
        begins.append(begins[-1] + len(line))
    return rows, begins


def append(path: Path, line: bytes) -> None:
    """Append a line to the file."""
    try:
        with open(path, "ab", buffering=0) as file:
            files.write(file.fileno(), line)
    except OSError as error:
        raise files.not_written(path, error) from error


def flush(path: Path, keep: int | None = None) -> None:
    """Flush the file to the disk. A missing file is made; with `keep`, it is cut to its first `keep` bytes."""
    try:
        descriptor = os.open(path, os.O_WRONLY | files.WRITING, files.READABLE)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, files.READABLE)
            if keep is not None:
                os.ftruncate(descriptor, keep)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        files.sync_folder(path.parent)
    except OSError as error:
        raise files.not_written(path, error) from error
