"""One writer per folder.

The lock is the kernel's (flock on the file `.lock`) and lasts as long as the process. A killed process may leave the
file, but no lock. The text in the file only names the holder.

Which files of a folder certainly belong to a trajectory: no other file is ever overwritten or removed.

A name is not enough, since `steps` or `latest.safetensors` may belong to something else. A file belongs to a trajectory
if its content shows it: a sealed file with its seal, metrics with their checksums, a lock with the name of its holder.
"""

import fcntl
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from induction_memory.errors import Error, InputError, StorageError
from induction_memory.trajectory import rows
from induction_memory.trajectory.durable import READABLE, explain, make_folder, remove_parts
from induction_memory.trajectory.layout import FILES, LATEST, LOCK, MANIFEST, METRICS, STEPS, parts, step_files
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.tensors import SealedFile

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


CACHE = Path(".cache") / "probes"
_CACHED = re.compile(r"[0-9a-f]{64}\.(result|parquet)|\.[0-9a-f]{64}\.result\.part|tmp\w+\.part")


def may_begin(folder: Path) -> bool:
    """Whether a run may begin here: there is no folder, or only leftovers of a run that never began."""
    if not folder.exists():
        return True
    return folder.is_dir() and not (folder / MANIFEST).exists() and not strangers(folder)


def strangers(folder: Path) -> list[Path]:
    """What is in the folder and does not certainly belong to a trajectory."""
    own = {*parts(folder)}
    if (folder / STEPS).is_dir() and not (folder / STEPS).is_symlink():
        own |= {folder / STEPS, *(path for path in step_files(folder) if _is_sealed(path))}
    if not _others_in_cache(folder):
        own |= {folder / CACHE.parent}
    found = [*folder.iterdir(), *((folder / STEPS).iterdir() if folder / STEPS in own else ())]
    return sorted(path for path in found if path not in own and not _is_ours(path, folder))


def tidy(folder: Path) -> None:
    """Remove what a finished run no longer needs: the files of single steps and leftovers of interrupted writes."""
    remove_parts(folder)
    for path in [folder / LATEST, *step_files(folder)]:
        path.unlink(missing_ok=True)
    with suppress(OSError):  # it holds files of something else, or is gone
        (folder / STEPS).rmdir()


def remove(folder: Path) -> None:
    """Remove a trajectory and its folder; refused if another process holds it or it contains other files."""
    with locked(folder):
        others = strangers(folder)
        if others:
            raise InputError(f"{folder}: expected a trajectory and nothing else, got {others[0].name!r} in it")
        try:
            for path in [folder / MANIFEST, *(folder / CACHE).glob("*")]:
                path.unlink(missing_ok=True)
            tidy(folder)
            for path in [folder / name for name in FILES]:
                path.unlink(missing_ok=True)
            for path in (folder / CACHE, folder / CACHE.parent):
                if path.is_dir():
                    path.rmdir()
        except OSError as error:
            raise StorageError(explain(folder, error)) from error
    with suppress(OSError):
        os.rmdir(folder)


def _others_in_cache(folder: Path) -> list[Path]:
    """What is under .cache besides cached results of probes."""
    top, inner = folder / CACHE.parent, folder / CACHE
    if top.is_symlink() or inner.is_symlink() or (top.exists() and not top.is_dir()):
        return [top]
    outside = [path for path in top.glob("*") if path != inner]
    return outside + [path for path in inner.glob("*") if not _CACHED.fullmatch(path.name) or not path.is_file()]


def _is_ours(path: Path, folder: Path) -> bool:
    if path.parent != folder or path.is_symlink():
        return False
    if path.name == LOCK:
        return is_ours(path)
    if path.name == MANIFEST:
        return _reads(lambda: Manifest.read(folder))
    if path.name == METRICS:
        with path.open("rb") as file:
            line = file.readline(100_000)
        return not line or rows.MARK in line
    return path.name in FILES and _is_sealed(path)


def _is_sealed(path: Path) -> bool:
    return _reads(lambda: SealedFile.open(path))


def _reads(read: Callable[[], object]) -> bool:
    try:
        read()
    except (Error, OSError):
        return False
    return True
