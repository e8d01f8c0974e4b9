"""One writer per folder, and which files of a folder belong to a trajectory.

The lock is the kernel's (flock on the file `.lock`) and lasts as long as the process. A killed process may leave the
file, but not the lock. The text in the file only names the holder.

In a folder with a manifest, files with the names in `manifest.py` belong to the run. In a folder without a manifest,
such files beside a `.lock` are leftovers of a run that was killed before it began. A folder with any other file is
refused, so no other file is ever overwritten or removed.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from induction_memory.errors import InputError, UnsupportedError
from induction_memory.files import PART, READABLE, WRITING, make_folder, not_written
from induction_memory.trajectory.manifest import (
    FILES,
    LATEST,
    LOCK,
    MANIFEST,
    PIECES,
    STEP_FILE,
    STEPS,
    Manifest,
    step_files,
)

CACHE = Path(".cache") / "probes"
OWN = (*FILES, LOCK, STEPS, CACHE.parts[0])
"""The names in a trajectory's folder."""


class BusyError(InputError):
    """Another process trains in the folder."""

    entry = "locked"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which is created if missing; a BusyError names the process that holds it already."""
    if find_spec("fcntl") is None:
        raise UnsupportedError(
            f"{folder}: expected a system with file locks (Linux, macOS or WSL) to write runs, got none"
        )
    make_folder(folder)
    path = folder / LOCK
    descriptor = _acquire(path)
    try:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {since}"
        with suppress(OSError):  # full disk: the lock works without the text
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        with suppress(OSError):  # the folder may be gone or read-only
            names = os.listdir(folder)
            began = MANIFEST in names
            if began or not any(name in (STEPS, LATEST, *PIECES) or PART.fullmatch(name) for name in names):
                path.unlink(missing_ok=True)  # otherwise it marks leftovers of a run that never began
        os.close(descriptor)


def _acquire(path: Path) -> int:
    import fcntl

    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | WRITING, READABLE)
        except OSError as error:
            raise not_written(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise BusyError(f"{path.parent}: expected a folder no other process trains in, got {holder}") from error
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # its holder has just removed the file, so this lock is void


def may_begin(folder: Path) -> bool:
    """Whether a run may begin here: no folder, an empty one, or one with leftovers of a run that never began."""
    if not folder.exists():
        return True
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return False
    return not any(folder.iterdir()) or ((folder / LOCK).is_file() and not strangers(folder))


def strangers(folder: Path) -> list[Path]:
    """The files in the folder that do not belong to a trajectory."""
    found = []
    for path in [*folder.iterdir(), *(folder / STEPS).glob("*")]:
        named = path.name in OWN if path.parent == folder else STEP_FILE.fullmatch(path.name)
        if path.is_symlink() or not (named or PART.fullmatch(path.name)):
            found.append(path)
    return sorted(found)


def remove_parts(folder: Path) -> None:
    """Remove the leftovers of interrupted writes."""
    for path in (*folder.glob(".*.part"), *(folder / STEPS).glob(".*.part")):
        if PART.fullmatch(path.name):
            path.unlink(missing_ok=True)


def tidy(folder: Path) -> None:
    """Remove what a finished run does not need: the files of single steps and leftovers of interrupted writes."""
    remove_parts(folder)
    for path in (folder / LATEST, *step_files(folder).values()):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it holds other files, or is gone
        (folder / STEPS).rmdir()


def remove(folder: Path) -> None:
    """Remove a trajectory and its folder; refused if another process holds it or it contains other files."""
    others = strangers(folder)
    if others:
        raise InputError(f"{folder}: expected a trajectory and nothing else, got {others[0].name!r} in it")
    if not may_begin(folder):
        Manifest.read(folder)
    with locked(folder):
        try:
            tidy(folder)
            for name in FILES:
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / CACHE.parent, ignore_errors=True)
        except OSError as error:
            raise not_written(folder, error) from error
    with suppress(OSError):
        os.rmdir(folder)
