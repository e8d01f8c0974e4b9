"""Steps that are kept rounded, in about a quarter of the space: rounded.safetensors.

Each parameter W has a unit, a power of two between 2^-11 and 2^-10 of its root mean square over the rounded steps:

    q_s = round(W_s / unit)              each weight is off by at most unit / 2, 0.05 % of the root mean square
    d_s = q_s - q_(s-1), q_(-1) = 0      small numbers, because a parameter moves little from one kept step to the next

The differences are written as 2d for d >= 0 and -2d - 1 for d < 0, four bytes each. Each step has first the lowest
bytes of all entries, then the next ones, and all steps are deflated together. The file holds `differences/NAME` (the
deflated bytes) and `unit/NAME` for each parameter. The weights that are read back are float32 and exactly unit q_s, so
rounding them again with the same unit changes nothing.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import DamagedError, InputError
from induction_memory.trajectory.durable import Piece
from induction_memory.trajectory.layout import ROUNDED
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.sealed import SealedFile, write_tensors

BITS = 10
"""A unit is between 2^-(BITS + 1) and 2^-BITS of the root mean square."""
_DIFFERENCES, _UNIT = "differences/", "unit/"
_LARGEST = 2**24
"""Bound of |q|: below it, unit q is exact in float32."""


def write_rounded(
    path: Path,
    steps: Sequence[int],
    names: Sequence[str],
    read: Callable[[str, int], Tensor],
    units: Mapping[str, float],
) -> Piece:
    """Write the steps of these parameters; a unit that `units` does not give follows from the weights."""
    found: dict[str, Tensor] = {}
    for name in names:
        values = np.stack([read(name, step).numpy() for step in steps])
        unit = units.get(name) or unit_of(values)
        whole = np.rint(values.astype(np.float64) / unit)
        if values.dtype != np.float32 or not np.abs(whole).max(initial=0) < _LARGEST:
            raise InputError(f"rounded: expected finite float32 weights, got others in {name}")
        found[_DIFFERENCES + name] = torch.from_numpy(_deflated(whole.astype(np.int32).reshape(len(steps), -1)))
        found[_UNIT + name] = torch.tensor(unit, dtype=torch.float64)
    return write_tensors(path, found, steps)


def unit_of(values: Float[np.ndarray, "step ..."]) -> float:
    """The unit of a parameter; 1 if the root mean square is zero or not finite."""
    size = math.sqrt(np.mean(np.square(values, dtype=np.float64)))
    return 2.0 ** (math.floor(math.log2(size)) - BITS) if 0 < size < math.inf else 1.0


class RoundedFile:
    """The rounded steps of a run. A parameter is inflated when it is first asked for, and kept."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.file = SealedFile.open_piece(folder / ROUNDED, manifest.pieces.get(ROUNDED))
        self._read: dict[str, Tensor] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        return self.file.steps

    @cached_property
    def units(self) -> dict[str, float]:
        """Parameter -> its unit."""
        names = [name.removeprefix(_UNIT) for name in self.file.entries if name.startswith(_UNIT)]
        return {name: float(self.file.read(_UNIT + name)) for name in names}

    def read_step(self, name: str, step: int, shape: tuple[int, ...]) -> Tensor:
        """One parameter at one of the steps."""
        if name not in self._read:
            data = self.file.read(_DIFFERENCES + name).numpy()
            try:
                whole = _inflated(data, len(self.steps), math.prod(shape))
            except (ValueError, zlib.error) as error:
                raise DamagedError(self.file.path, f"differences that cannot be read of {name}") from error
            values = (whole * float(self.file.read(_UNIT + name))).astype(np.float32)
            self._read[name] = torch.from_numpy(values.reshape(len(self.steps), *shape))
        return self._read[name][self.steps.index(step)].clone()


def rounded_steps(folder: Path, manifest: Manifest) -> tuple[int, ...]:
    """The steps of a run that are kept rounded."""
    return RoundedFile(folder, manifest).steps if ROUNDED in manifest.pieces else ()


def _deflated(whole: np.ndarray) -> np.ndarray:
    """[step, entry] whole numbers as deflated differences."""
    d = np.diff(whole, axis=0, prepend=0)
    unsigned = np.where(d < 0, -2 * d - 1, 2 * d).astype("<u4")
    planes = unsigned.view(np.uint8).reshape(*whole.shape, 4).transpose(0, 2, 1)
    return np.frombuffer(zlib.compress(planes.tobytes()), dtype=np.uint8).copy()


def _inflated(data: np.ndarray, steps: int, size: int) -> np.ndarray:
    """The whole numbers [step, entry]; ValueError if the data do not have exactly `steps` steps of `size` entries."""
    inflating, length = zlib.decompressobj(), 4 * steps * size
    planes = inflating.decompress(data.tobytes(), length + 1)
    if len(planes) != length or not inflating.eof or inflating.unused_data:
        raise ValueError
    planes = np.frombuffer(planes, dtype=np.uint8).reshape(steps, 4, size)
    unsigned = sum(planes[:, i].astype(np.int64) << 8 * i for i in range(4))
    return np.cumsum((unsigned >> 1) ^ -(unsigned & 1), axis=0)
