"""Files of results (tables, pictures, pages): written completely or not at all. Bad paths are refused before any work.

The files of a trajectory are written by `trajectory.durable`, which is also safe against a power cut.
"""

import errno
import io
import itertools
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from induction_memory.errors import InputError, StorageError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_NAME = 255
"""The largest number of bytes of one name in a path."""
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_numbers = itertools.count()


def require_file(path: Any, endings: Sequence[str], field: str = "out") -> Path:
    """The path of a file that can be written, or an InputError; folders that are missing will be made."""
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


def write_file(path: Path, content: bytes | str, field: str = "out") -> None:
    """Make `path` hold the content, all of it or none: it is written under a temporary name and renamed."""
    path = Path(os.path.realpath(path))
    part = path.parent / f".{os.getpid()}-{next(_numbers)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    except OSError as error:
        raise _refused(path, error, field) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_figure(figure: "Figure", path: Path, field: str = "out", **options: Any) -> None:
    """Write a matplotlib figure, in the format that the file's name ends in."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], **options)
    write_file(path, drawn.getvalue(), field)


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
    """The error of a write that failed: an InputError if another path would help, a StorageError for a full disk."""
    told = f"{field}: expected {expected}, got {str(path)!r} ({error.strerror or error})"
    return StorageError(told) if error.errno in _DISK else InputError(told)
