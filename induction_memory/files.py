"""Files that are written completely or not at all, and paths that are refused before any work.

A file is written under a temporary name, flushed to the disk and renamed, and the folder with the new name is flushed.
So at every moment, also after a kill or a power cut, the file holds the complete old content or the complete new one.
Files reach the disk in the order in which they are written, so a file may refer to an earlier one. Every such write
goes through `write`, `os.fsync` and `os.replace`.
"""

import errno
import io
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from induction_memory.errors import InputError, StorageError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_NAME = 255
"""The largest number of bytes of one name in a path."""
READABLE = 0o644
"""The mode of every file, regardless of the umask: a group shares its runs."""
PART = re.compile(r"\.\d+-\d+\.part")
"""The temporary name of a file that is being written: process and number."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
WRITING = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""How a file of ours is opened, in the flags that this system has."""
_numbers = itertools.count()
Bytes = bytes | memoryview


def replace_file(path: Path, chunks: Iterable[Bytes]) -> None:
    """Make `path` hold the chunks, all of them or none. An OSError leaves the old content and no temporary file."""
    part = path.with_name(f".{os.getpid()}-{next(_numbers)}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_TRUNC | WRITING, READABLE)
        try:
            if hasattr(os, "fchmod"):  # where files have modes, whatever the umask
                os.fchmod(descriptor, READABLE)
            for chunk in chunks:
                write(descriptor, chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def write(descriptor: int, data: Bytes) -> None:
    """Write all bytes."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(descriptor, view) :]


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to the disk. Windows cannot open a folder, so nothing is done there."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder, parents included, and flush its name to the disk."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise not_written(path, error) from error


def not_written(path: Path, error: OSError) -> StorageError:
    """A one-line StorageError for a write that failed."""
    kept = "what was kept before is intact" if path.parent.exists() else f"the folder {path.parent} is gone"
    return StorageError(f"{path}: expected to write it, got {error.strerror or error}; {kept}")


def write_file(path: Path, content: bytes | str, field: str = "out") -> None:
    """Write a result to `path`, or to the file that it links to; missing folders are made."""
    path = Path(os.path.realpath(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [content.encode() if isinstance(content, str) else content])
    except OSError as error:
        raise _refused(path, error, field) from error


def write_figure(figure: "Figure", path: Path, field: str = "out", **options: Any) -> None:
    """Write a matplotlib figure, in the format of the file's ending."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], **options)
    write_file(path, drawn.getvalue(), field)


def require_file(path: Any, endings: Sequence[str], field: str = "out") -> Path:
    """The path of a file that can be written, or an InputError; missing folders will be made later."""
    path = _path(path, f"a file ending in {', '.join(endings)}", field)
    require(path.suffix in endings, field, f"a file ending in {', '.join(endings)}", repr(str(path)))
    try:
        require(not path.is_dir(), field, "a file", f"the folder {str(path)!r}")
        require(path.is_file() or not os.path.lexists(path), field, "a regular file", repr(str(path)))
    except OSError as error:
        raise _refused(path, error, field) from error
    _require_parents(path, "a file that can be written", field)
    return path


def require_folder(path: Any, field: str = "out") -> Path:
    """The path of a folder that is there or can be made, or an InputError."""
    path = _path(path, "a folder", field)
    try:
        require(path.is_dir() or not os.path.lexists(path), field, "a folder", repr(str(path)))
    except OSError as error:
        raise _refused(path, error, field, "a folder") from error
    _require_parents(path, "a folder that can be made", field)
    return path


def _path(path: Any, expected: str, field: str) -> Path:
    """The path, or an InputError if it is empty or has a name that is too long."""
    good = isinstance(path, str | os.PathLike) and isinstance(os.fspath(path), str)
    require(good and os.fspath(path) != "" and "\0" not in os.fspath(path), field, expected, repr(path))
    longest = max(map(len, os.fsencode(path).split(b"/")))
    require(longest <= LONGEST_NAME, field, f"names of at most {LONGEST_NAME} bytes", f"one of {longest}")
    return Path(path)


def _require_parents(path: Path, expected: str, field: str) -> None:
    """Refuse a path below a file, or below a folder in which nothing can be made."""
    try:
        nearest = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _refused(path, error, field, expected) from error


def _refused(
    path: Path, error: OSError, field: str, expected: str = "a file that can be written"
) -> InputError | StorageError:
    """The error for a path that cannot be used: an InputError if another path would help, a StorageError for a full
    disk."""
    told = f"{field}: expected {expected}, got {str(path)!r} ({error.strerror or error})"
    return StorageError(told) if error.errno in _DISK else InputError(told)
