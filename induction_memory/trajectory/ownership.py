"""Which files of a folder certainly belong to a trajectory: no other file is ever overwritten or removed.

A name is not enough, since `steps` or `latest.safetensors` may belong to something else. A file belongs to a trajectory
if its content shows it: a sealed file with its seal, metrics with their checksums, a lock with the name of its holder.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from induction_memory.errors import Error, InputError, StorageError
from induction_memory.trajectory import lock, rows
from induction_memory.trajectory.durable import explain, remove_parts
from induction_memory.trajectory.layout import (
    FILES,
    LATEST,
    LOCK,
    MANIFEST,
    METRICS,
    STEPS,
    parts,
    step_files,
)
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.sealed import SealedFile

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
    with lock.locked(folder):
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
        return lock.is_ours(path)
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
