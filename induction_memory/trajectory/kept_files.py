"""Results kept on the disk, each with a checksum.

A file holds the SHA-256 of its key and its content, a line end, and the content. A damaged or misnamed file counts as
missing. Each is written under a temporary name and then renamed. In a read-only folder or on a full disk nothing is
kept, and results are computed again.
"""

import contextlib
import hashlib
import os
import time
from pathlib import Path

from induction_memory.trajectory.durable import READABLE
from induction_memory.trajectory.layout import part_path

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
    part = part_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(_seal(key, content) + b"\n" + content)
        part.chmod(READABLE)  # regardless of the umask: a group shares its runs
        os.replace(part, path)
        _remove_old_parts(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()


def _seal(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).hexdigest().encode()


def _remove_old_parts(folder: Path) -> None:
    for part in folder.glob("*.part"):
        if time.time() - part.stat().st_mtime > _OLD:
            part.unlink(missing_ok=True)
