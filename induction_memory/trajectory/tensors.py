"""Safetensors files that notice their own damage.

A file is ordinary safetensors: 8 bytes with the header's length, a JSON header, the tensors' bytes. Its metadata hold

    steps       the steps it stands for, as a JSON list; a stacked file's tensors have them as their first axis
    stacked     "true" or "false"
    checksums   JSON: tensor name -> CRC-32 of each of its blocks, eight hexadecimal digits per block; a block is one
                step of a stacked tensor, or a whole tensor
    run         the identity of the run whose step this is; only in the files of single steps
    seal        SHA-256 of the header without this entry, written as JSON with sorted keys and no spaces

Opening checks the seal, and that the file is the expected one: the piece in the manifest, or a step of the run. Reading
checks each block that is read, so that one matrix over all steps, or one step, is verified without touching the rest. A
CRC-32 catches every single flipped bit, and bursts of up to 32.

Steps that are kept rounded, in about a quarter of the space: rounded.safetensors.

Each parameter W has a unit, a power of two between 2^-11 and 2^-10 of its root mean square over the rounded steps:

    q_s = round(W_s / unit)              each weight is off by at most unit / 2, 0.05 % of the root mean square
    d_s = q_s - q_(s-1), q_(-1) = 0      small numbers, because a parameter moves little from one kept step to the next

The differences are written as 2d for d >= 0 and -2d - 1 for d < 0, four bytes each. Each step has first the lowest
bytes of all entries, then the next ones, and all steps are deflated together. The file holds `differences/NAME` (the
deflated bytes) and `unit/NAME` for each parameter. The weights that are read back are float32 and exactly unit q_s, so
rounding them again with the same unit changes nothing.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from induction_memory.errors import DamagedError, InputError
from induction_memory.trajectory.durable import Bytes, Piece, check_piece, open_regular, write_durably
from induction_memory.trajectory.layout import ROUNDED
from induction_memory.trajectory.manifest import Manifest

_NAMES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I64": np.int64, "U8": np.uint8}
_CODES = {torch.from_numpy(np.empty(0, kind)).dtype: code for code, kind in _NAMES.items()}
_LARGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Entry:
    """One tensor to be written: its name, kind, shape (with the step axis, if stacked) and the CRC of each block."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksums: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * np.dtype(_NAMES[self.dtype]).itemsize


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], steps: Sequence[int] = (), run: str | None = None
) -> Piece:
    """Write whole tensors, one block each; `run` is the identity of the run whose step this is."""
    blocks = {name: as_bytes(tensor) for name, tensor in tensors.items()}
    entries = [
        Entry(name, _CODES[tensor.dtype], tuple(tensor.shape), (zlib.crc32(blocks[name]),))
        for name, tensor in tensors.items()
    ]
    return _write(path, entries, steps, False, (blocks[entry.name] for entry in entries), run)


def write_stack(
    path: Path, steps: Sequence[int], first: Mapping[str, Entry], read: Callable[[str, int], Tensor]
) -> Piece:
    """Write tensors with a leading step axis, holding one block at a time.

    `first` describes each tensor without that axis. `read` gives the block of a name and a step. It is called twice for
    each, because the checksums stand in the header, before the data.
    """
    entries = [
        Entry(
            name,
            entry.dtype,
            (len(steps), *entry.shape),
            tuple(zlib.crc32(as_bytes(read(name, step))) for step in steps),
        )
        for name, entry in first.items()
    ]
    blocks = (as_bytes(read(entry.name, step)) for entry in entries for step in steps)
    return _write(path, entries, steps, True, blocks, None)


def describe(name: str, tensor: Shaped[Tensor, "..."]) -> Entry:
    """The entry of a tensor, without checksums."""
    return Entry(name, _CODES[tensor.dtype], tuple(tensor.shape), ())


def as_bytes(tensor: Shaped[Tensor, "..."]) -> memoryview:
    """A tensor's bytes, in row order."""
    return tensor.detach().cpu().contiguous().reshape(-1).numpy().view(np.uint8).data


def _write(
    path: Path,
    entries: list[Entry],
    steps: Sequence[int],
    stacked: bool,
    blocks: Iterable[Bytes],
    run: str | None,
) -> Piece:
    checksums = {entry.name: "".join(f"{crc:08x}" for crc in entry.checksums) for entry in entries}
    metadata = {
        "format": "induction_memory",
        "steps": json.dumps([int(step) for step in steps]),
        "stacked": "true" if stacked else "false",
        "checksums": json.dumps(checksums),
    }
    if run is not None:
        metadata["run"] = run
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.size],
        }
        offset += entry.size
    metadata["seal"] = _seal(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def chunks() -> Iterator[Bytes]:
        yield len(text).to_bytes(8, "little") + text
        yield from blocks

    return replace(write_durably(path, chunks()), seal=metadata["seal"])


def _seal(header: dict[str, Any]) -> str:
    metadata = {key: value for key, value in header["__metadata__"].items() if key != "seal"}
    text = json.dumps({**header, "__metadata__": metadata}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class SealedFile:
    """The checked header of a sealed file; tensors are read, and checked, when asked for."""

    path: Path
    steps: tuple[int, ...]
    stacked: bool
    entries: dict[str, Entry]
    starts: dict[str, int]
    run: str | None
    seal: str

    @classmethod
    def open(cls, path: Path) -> "SealedFile":
        """Read and check the header."""
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
                raise DamagedError(path, f"a header of {length} bytes in a file of {size}")
            text = file.read(length)
        try:
            header = json.loads(text.decode())
            sealed = header["__metadata__"]["seal"] == _seal(header)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(path, "a header that cannot be read") from error
        if not sealed:
            raise DamagedError(path, "a header that differs from its seal")
        try:
            found = cls._of(path, header, 8 + length)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(path, "a header that does not describe tensors") from error
        expected = 8 + length + sum(entry.size for entry in found.entries.values())
        if size != expected:
            raise DamagedError(path, f"{size} bytes instead of {expected}")
        return found

    @classmethod
    def open_piece(cls, path: Path, piece: Piece | None) -> "SealedFile":
        """Open a file that the manifest lists: it must be that very file."""
        if piece is None:
            raise DamagedError(path, "a manifest that does not list it")
        if piece.seal is None:  # format version 1: the whole content is compared
            check_piece(path, piece)
        found = cls.open(path)
        if piece.seal is not None and found.seal != piece.seal:
            raise DamagedError(path, "another file than the manifest lists")
        return found

    @classmethod
    def open_step(cls, path: Path, run: str | None, step: int | None = None) -> "SealedFile":
        """Open the state of one step; it must be of that run (None: begun in format version 1) and of that step."""
        found = cls.open(path)
        if len(found.steps) != 1 or (step is not None and found.steps[0] != step):
            raise DamagedError(path, f"the state of {' and '.join(map(str, found.steps)) or 'no'} step")
        if found.run != run:
            raise DamagedError(path, "the state of another run")
        return found

    @classmethod
    def _of(cls, path: Path, header: dict[str, Any], begin: int) -> "SealedFile":
        """The file that a header describes; raises ValueError, KeyError or TypeError if it describes none."""
        metadata = header.pop("__metadata__")
        checksums, steps = json.loads(metadata["checksums"]), json.loads(metadata["steps"])
        stacked = metadata["stacked"] == "true"
        entries, starts, offset = {}, {}, 0
        for name, entry in header.items():
            found = Entry(name, entry["dtype"], tuple(entry["shape"]), _split(checksums[name]))
            blocks = len(steps) if stacked else 1
            shaped = all(isinstance(n, int) and n >= 0 for n in found.shape) and len(found.checksums) == blocks
            placed = entry["data_offsets"] == [offset, offset + found.size]
            if not shaped or not placed or (stacked and found.shape[0] != len(steps)):
                raise ValueError(name)
            entries[name], starts[name] = found, begin + offset
            offset += found.size
        if not all(isinstance(step, int) and step >= 0 for step in steps) or sorted(set(steps)) != steps:
            raise ValueError(steps)
        return cls(path, tuple(steps), stacked, entries, starts, metadata.get("run"), metadata["seal"])

    def read(self, name: str) -> Tensor:
        """A whole tensor, every block checked."""
        return self._read(name, 0, len(self._entry(name).checksums), self._entry(name).shape)

    def read_step(self, name: str, step: int) -> Tensor:
        """One step of a stacked tensor."""
        assert self.stacked
        index = self.steps.index(step)
        return self._read(name, index, index + 1, self._entry(name).shape[1:])

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            raise DamagedError(self.path, f"a file without {name}")
        return self.entries[name]

    def _read(self, name: str, first: int, last: int, shape: tuple[int, ...]) -> Tensor:
        entry = self._entry(name)
        block = entry.size // max(1, len(entry.checksums))
        data = np.empty((last - first) * block, dtype=np.uint8)
        view = data.data
        with open_regular(self.path) as file:
            file.seek(self.starts[name] + first * block)
            done = file.readinto(view)
        if done < len(view):
            raise DamagedError(self.path, f"a file that ends within {name}")
        for i in range(first, last):
            if zlib.crc32(view[(i - first) * block : (i - first + 1) * block]) != entry.checksums[i]:
                where = f" at step {self.steps[i]}" if self.stacked else ""
                raise DamagedError(self.path, f"flipped bits in {name}{where}")
        return torch.from_numpy(data.view(_NAMES[entry.dtype]).reshape(shape))

    def damage(self) -> DamagedError | None:
        """What is wrong with the blocks; None if all checksums are right."""
        try:
            for name in self.entries:
                self.read(name)
        except DamagedError as error:
            return error
        return None


def _split(digits: str) -> tuple[int, ...]:
    return tuple(int(digits[i : i + 8], 16) for i in range(0, len(digits), 8))


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
