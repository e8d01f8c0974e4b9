"""Every checksum of a trajectory, without stopping at the first that fails."""

from pathlib import Path

from induction_memory.errors import InputError
from induction_memory.trajectory import manifest as manifests
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.durable import Piece, piece_of
from induction_memory.trajectory.layout import LATEST, step_path
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.sealed import DamagedError, damage_of
from induction_memory.trajectory.trajectory import find


def verify(path: str | Path) -> list[str]:
    """What is damaged, a line each that names the file; empty when every piece is what was written."""
    folder = find(path)
    if not (folder / manifests.NAME).exists():
        raise InputError(f"{folder}: expected a trajectory (a folder with {manifests.NAME}), got none there")
    try:
        manifest = Manifest.read(folder)
    except DamagedError as error:
        return [str(error)]
    damage = [found for name, piece in manifest.pieces.items() for found in _piece(folder / name, piece)]
    tensors = [folder / name for name in manifest.pieces if name.endswith(".safetensors")]
    try:
        rows = row_files.read(folder / row_files.NAME, manifest.first_step, manifest.rows)
    except DamagedError as error:
        rows = []
        damage.append(str(error))
    if manifest.state != "finished":
        tensors += [folder / LATEST, *(step_path(folder, row["step"]) for row in rows if row["checkpoint"])]
    damage += [found for path in tensors if (found := damage_of(path)) is not None]
    return list(dict.fromkeys(damage))


def _piece(path: Path, piece: Piece) -> list[str]:
    if not path.exists():
        return [str(DamagedError(path, "no such file"))]
    found = piece_of(path)
    if found.size != piece.size:
        return [str(DamagedError(path, f"{found.size} bytes instead of {piece.size}"))]
    return [] if found == piece else [str(DamagedError(path, "a content that differs from its SHA-256"))]
