"""The files of a trajectory, each with its size and its checksum.

Only regular files are read, never a device or a pipe, which may never end.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from induction_memory.errors import DamagedError, StorageError
from induction_memory.files import Bytes, not_written, replace_file


@dataclass(frozen=True)
class Piece:
    """Checksum and size that a file must have."""

    sha256: str
    """SHA-256 of its content."""
    size: int
    """In bytes."""
    seal: str | None = None
    """The seal of the header of a file of tensors (tensors.py), which is quicker to check."""


def write_piece(path: Path, chunks: Iterable[Bytes], seal: str | None = None) -> Piece:
    """Make `path` hold the chunks, all of them or none, and return the piece that was written."""
    digest, size = hashlib.sha256(), 0

    def counted() -> Iterator[Bytes]:
        nonlocal size
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    try:
        replace_file(path, counted())
    except OSError as error:
        raise not_written(path, error) from error
    return Piece(digest.hexdigest(), size, seal)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a DamagedError if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedError(path, "no such file") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedError(path, "a link that leads nowhere") from error
        raise StorageError(f"{path}: expected to read it, got {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(path, "no regular file")
    return os.fdopen(descriptor, "rb")


def piece_of(path: Path) -> Piece:
    """Checksum and size of a file as it is now."""
    with open_regular(path) as file:
        return Piece(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def check_piece(path: Path, piece: Piece) -> None:
    """Raise a DamagedError unless the whole content of a file is that of the piece."""
    found = piece_of(path)
    if found.size != piece.size:
        raise DamagedError(path, f"{found.size} bytes instead of {piece.size}")
    if found.sha256 != piece.sha256:
        raise DamagedError(path, "content that differs from its SHA-256")
