"""One writer per folder.

The lock is the kernel's (flock on the file `.lock`) and lasts as long as the process. A killed process may leave the
file, but no lock. The text in the file only names the holder.
"""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from induction_memory.errors import InputError, StorageError
from induction_memory.trajectory.durable import READABLE, explain, make_folder
from induction_memory.trajectory.layout import LOCK

_HOLDER = re.compile(rb"process \d+ on .* since [-0-9:+ ]+")


class BusyError(InputError):
    """Another process trains in the folder."""

    entry = "locked"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which is created if missing; a BusyError names the process that holds it already."""
    make_folder(folder)
    path = folder / LOCK
    if (path.exists() or path.is_symlink()) and not is_ours(path):
        raise InputError(f"{folder}: expected no {LOCK} but one of this package, got another's")
    descriptor = _acquire(path)
    try:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {since}"
        with suppress(OSError):  # a full disk: the lock holds without the name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        with suppress(OSError):  # the folder may be gone, or read-only by now
            path.unlink(missing_ok=True)
        os.close(descriptor)


def is_ours(path: Path) -> bool:
    """Whether a lock file is one of this package: empty, or with the name of a holder."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1000:
        return False
    text = path.read_bytes()
    return not text or _HOLDER.fullmatch(text) is not None


def _acquire(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, READABLE)
        except OSError as error:
            raise StorageError(explain(path, error)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise BusyError(f"{path.parent}: expected a folder no other process trains in, got {holder}") from error
        if _number(path) == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)  # its holder has just removed the file, so this lock is no longer the folder's


def _number(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
