"""Writing that survives a power cut, a kill and a full disk.

A file is written beside its place, flushed to the disk, renamed, and the rename is flushed with its folder: at every
moment the name stands for the whole old content or for the whole new one. Whatever is flushed first is on the disk
first, so a file may refer to what was written before it.

Every write of the package's disk format goes through `_write`, `_sync` and `_rename`.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from induction_memory.errors import InputError

READABLE = 0o644
Bytes = bytes | memoryview


class StorageError(InputError):
    """The disk would not take what had to be written."""


@dataclass(frozen=True)
class Piece:
    """What a file must be: its content's SHA-256 and its size in bytes."""

    sha256: str
    size: int

    def to_dict(self) -> dict[str, str | int]:
        return asdict(self)


def write_durably(path: Path, chunks: Iterable[Bytes]) -> Piece:
    """Make `path` hold the chunks, all of them or none, and say what was written."""
    part = path.with_name(f".{path.name}.part")
    digest, size = hashlib.sha256(), 0
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, READABLE)
        try:
            os.fchmod(descriptor, READABLE)  # whatever the umask: a group shares its runs
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


def piece_of(path: Path) -> Piece:
    """What a file is now."""
    with path.open("rb") as file:
        return Piece(hashlib.file_digest(file, "sha256").hexdigest(), path.stat().st_size)


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
    """Remove what interrupted writes left behind."""
    for part in folder.glob(".*.part"):
        part.unlink()


class Appender:
    """A file that grows by whole lines; `sync` puts them on the disk."""

    def __init__(self, path: Path, keep: int) -> None:
        """Open the file and cut it to its first `keep` bytes."""
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, READABLE)
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
    """One line for what the disk refused."""
    return f"{path}: expected to write it, got {error.strerror or error}; what was kept before is intact"
