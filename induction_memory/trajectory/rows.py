"""metrics.jsonl: one JSON object a step, each line with the CRC-32 of what stands before it.

    {"step": 3, "loss": 1.25, ..., "crc32": 1234567890}

The checksum is that of the line's bytes before `, "crc32"`. Steps follow one another without a gap; what was not
measured is null. A line that a kill or a power cut tore off is noticed, and everything from it on is not there.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from induction_memory.trajectory.sealed import DamagedError

NAME = "metrics.jsonl"
_MARK = b', "crc32": '


def encode(row: Mapping[str, Any]) -> bytes:
    """The line of a row."""
    text = json.dumps(dict(row), allow_nan=False).encode()[:-1]
    return text + _MARK + str(zlib.crc32(text)).encode() + b"}\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """The row of a line with its line end; None when it is torn or damaged."""
    text, mark, checksum = line.rpartition(_MARK)
    if not mark or checksum != str(zlib.crc32(text)).encode() + b"}\n":
        return None
    return json.loads(text + b"}")


def intact(path: Path, first_step: int) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows up to the first line that is torn, damaged or out of turn, and the byte at which each ends."""
    rows: list[dict[str, Any]] = []
    ends: list[int] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        row = decode(line)
        if row is None or row["step"] != first_step + len(rows):
            break
        rows.append(row)
        ends.append((ends[-1] if ends else 0) + len(line))
    return rows, ends


def read(path: Path, first_step: int, expected: int | None) -> list[dict[str, Any]]:
    """All rows; `expected` is their number in a finished trajectory, None while a last line may still be torn."""
    rows, ends = intact(path, first_step)
    rest = path.read_bytes()[ends[-1] if ends else 0 :] if path.exists() else b""
    torn = expected is None and b"\n" not in rest
    if (rest and not torn) or (expected is not None and len(rows) != expected):
        raise DamagedError(path, f"a damaged or missing line {len(rows) + 1}")
    return rows
