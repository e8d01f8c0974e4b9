"""Reading and writing files that a kill, a power cut or a full disk may interrupt.

A file is written under a temporary name, flushed to the disk and renamed, and the folder with the new name is flushed.
So at every moment the name stands for the complete old content or for the complete new one. Files reach the disk in the
order in which they are written, so a file may refer to one that was written before it.

Every write of the package's disk format goes through `_write`, `_sync` and `_rename`. Only regular files are read,
never a device or a pipe, which may never end. Nothing is written through a link.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path

from induction_memory.errors import DamagedError, StorageError
from induction_memory.trajectory.layout import part_path, parts

READABLE = 0o644
Bytes = bytes | memoryview


@dataclass(frozen=True)
class Piece:
    """Checksum and size that a file must have."""

    sha256: str
    """SHA-256 of its content."""
    size: int
    """In bytes."""
    seal: str | None = None
    """The seal of the header of a sealed file (sealed.py), which is quicker to check. None in format version 1."""

    def to_dict(self) -> dict[str, str | int | None]:
        return asdict(self)


def write_durably(path: Path, chunks: Iterable[Bytes]) -> Piece:
    """Make `path` hold the chunks, all of them or none, and return the piece that was written."""
    part = part_path(path)
    digest, size = hashlib.sha256(), 0
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, READABLE)
        try:
            os.fchmod(descriptor, READABLE)  # regardless of the umask: a group shares its runs
            for chunk in chunks:
                _write(descriptor, chunk)
                digest.update(chunk)
                size += len(chunk)
            _sync(descriptor)
        finally:
            os.close(descriptor)
        _rename(part, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StorageError(explain(path, error)) from error
    return Piece(digest.hexdigest(), size)


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


def check_piece(path: Path, piece: Piece) -> None:
    """Raise a DamagedError unless the whole content of a file is that of the piece."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != piece.size:
            raise DamagedError(path, f"{size} bytes instead of {piece.size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != piece.sha256:
            raise DamagedError(path, "content that differs from its SHA-256")


def piece_of(path: Path) -> Piece:
    """Checksum and size of a file as it is now."""
    with open_regular(path) as file:
        return Piece(hashlib.file_digest(file, "sha256").hexdigest(), os.fstat(file.fileno()).st_size)


def make_folder(path: Path) -> None:
    """Create a folder, parents included, and flush its name to the disk."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(explain(path, error)) from error


def sync_folder(path: Path) -> None:
    """Flush a folder's names to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def remove_parts(folder: Path) -> None:
    """Remove what interrupted writes of this format left behind."""
    for part in parts(folder):
        part.unlink(missing_ok=True)


class Appender:
    """A file that grows by whole lines; `sync` puts them on the disk."""

    def __init__(self, path: Path, keep: int) -> None:
        """Open the file and cut it to its first `keep` bytes."""
        self.path = path
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, READABLE)
            os.fchmod(self._descriptor, READABLE)
            os.ftruncate(self._descriptor, keep)
            _sync(self._descriptor)
            sync_folder(path.parent)
        except OSError as error:
            raise StorageError(explain(path, error)) from error

    def append(self, line: bytes) -> None:
        self._do(lambda: _write(self._descriptor, line))

    def sync(self) -> None:
        self._do(lambda: _sync(self._descriptor))

    def close(self) -> None:
        os.close(self._descriptor)

    def _do(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise StorageError(explain(self.path, error)) from error


def _write(descriptor: int, data: Bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[os.write(descriptor, view) :]


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _rename(source: Path, target: Path) -> None:
    os.replace(source, target)


def explain(path: Path, error: OSError) -> str:
    """One line for a write that the disk refused."""
    kept = "what was kept before is intact" if path.parent.exists() else f"the folder {path.parent} is gone"
    return f"{path}: expected to write it, got {error.strerror or error}; {kept}"
