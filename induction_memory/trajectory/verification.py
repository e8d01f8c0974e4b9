"""Every checksum of a trajectory, without stopping at the first that fails."""

from collections.abc import Callable
from pathlib import Path

from induction_memory.errors import DamagedError, Error, InputError
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.durable import check_piece
from induction_memory.trajectory.layout import LATEST, MANIFEST, step_path
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.rounded import rounded_steps
from induction_memory.trajectory.sealed import SealedFile
from induction_memory.trajectory.search import find


def verify(path: str | Path) -> list[str]:
    """One line for each damaged file, which names it; empty if all checksums are right.

    >>> import induction_memory as im
    >>> im.verify("induction-small")
    []
    """
    folder = find(path)
    if not (folder / MANIFEST).exists():
        raise InputError(f"{folder}: expected a trajectory (a folder with {MANIFEST}), got none there")
    try:
        manifest = Manifest.read(folder)
        manifest.parts(folder)
    except DamagedError as error:
        return [str(error)]
    damage: list[str] = []

    def check(action: Callable[[], object]) -> None:
        try:
            action()
        except InputError:
            raise
        except Error as error:
            damage.append(str(error))

    for name, piece in manifest.pieces.items():
        check(lambda: check_piece(folder / name, piece))  # noqa: B023
        if name.endswith(".safetensors"):
            check(lambda: _blocks(SealedFile.open_piece(folder / name, piece)))  # noqa: B023
    rows: list[dict] = []
    check(lambda: rows.extend(row_files.of(folder, manifest)))
    if manifest.state != "finished":
        rounded: list[int] = []
        check(lambda: rounded.extend(rounded_steps(folder, manifest)))
        steps = [row["step"] for row in rows if row["checkpoint"] and row["step"] not in rounded]
        kept = [(step_path(folder, step), step) for step in steps]
        for state, step in [(folder / LATEST, None), *kept]:
            check(lambda: _blocks(SealedFile.open_step(state, manifest.identity, step)))  # noqa: B023
    return list(dict.fromkeys(damage))


def _blocks(file: SealedFile) -> None:
    if (damage := file.damage()) is not None:
        raise damage
