"""metrics.jsonl: one JSON object per step, each line with the CRC-32 of what stands before it.

    {"step": 3, "loss": 1.25, ..., "crc32": 1234567890}

The checksum is that of the line's bytes before `, "crc32"`. It starts from the run's key in the manifest instead of 0
(`zlib.crc32(text, key)`), so that a line of another run is noticed. Steps follow one another without a gap. What was
not measured is null. An incomplete line, left by a kill or a power cut, is noticed, and everything from it on counts as
not written.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from induction_memory.errors import DamagedError
from induction_memory.trajectory.durable import open_regular
from induction_memory.trajectory.layout import METRICS
from induction_memory.trajectory.manifest import Manifest

MARK = b', "crc32": '


def encode(row: Mapping[str, Any], key: int = 0) -> bytes:
    """The line of a row."""
    text = json.dumps(dict(row), allow_nan=False).encode()[:-1]
    return text + MARK + str(zlib.crc32(text, key)).encode() + b"}\n"


def decode(line: bytes, key: int = 0) -> dict[str, Any] | None:
    """The row of a line with its line end; None if the line is incomplete, damaged or from another run."""
    text, mark, checksum = line.rpartition(MARK)
    if not mark or checksum != str(zlib.crc32(text, key)).encode() + b"}\n":
        return None
    try:
        row = json.loads(text + b"}")
    except (ValueError, RecursionError):
        return None
    whole = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("checkpoint"), bool)
    return row if whole else None


def intact(path: Path, first_step: int, key: int = 0) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows up to the first line that is incomplete, damaged or out of order, and the byte at which each ends."""
    return _intact(_content(path), first_step, key)


def of(folder: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """All rows of a run; the file is read once. While the run grows, the last line may be incomplete."""
    path, expected, piece = folder / METRICS, manifest.rows, manifest.pieces.get(METRICS)
    content = _content(path)
    if piece is not None and hashlib.sha256(content).hexdigest() != piece.sha256:
        what = "no such file" if not content else f"content of {len(content)} bytes that differs from its SHA-256"
        raise DamagedError(path, what)
    rows, ends = _intact(content, manifest.first_step, manifest.key)
    rest = content[ends[-1] if ends else 0 :]
    torn = expected is None and b"\n" not in rest
    if (rest and not torn) or (expected is not None and len(rows) != expected):
        raise DamagedError(path, f"a damaged or missing line {len(rows) + 1}")
    return rows


def _content(path: Path) -> bytes:
    if not path.exists() and not path.is_symlink():
        return b""
    with open_regular(path) as file:
        return file.read()


def _intact(content: bytes, first_step: int, key: int) -> tuple[list[dict[str, Any]], list[int]]:
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    for line in content.splitlines(keepends=True):
        row = decode(line, key)
        if row is None or row["step"] != first_step + len(rows):
            break
        rows.append(row)
        ends.append((ends[-1] if ends else 0) + len(line))
    return rows, ends
