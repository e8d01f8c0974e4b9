"""Tensor files with checksums, and steps that are kept rounded.

A file is ordinary safetensors: 8 bytes with the header's length, a JSON header, the tensors' bytes. Its metadata hold

    steps       the steps in the file, as a JSON list; the first axis of the tensors in a stacked file
    stacked     "true" or "false"
    checksums   JSON: tensor name -> CRC-32 of each of its blocks, eight hexadecimal digits per block; a block is one
                step of a stacked tensor, or a whole tensor
    run         the identity of the run; only in the files of single steps
    seal        SHA-256 of the header without this entry, written as JSON with sorted keys and no spaces

A stored step has every parameter by its name in the HookedTransformer. A tied W_U = W_E^T is not stored.

Opening a file checks its seal, and that it is the file in the manifest, or a step of the run. Reading checks each block
that is read, so one matrix over all steps, or one step, is verified without reading the rest. A CRC-32 catches every
single flipped bit, and bursts of up to 32.

rounded.safetensors keeps steps in about a quarter of the space. Each parameter W has a unit, a power of two between
2^-11 and 2^-10 of its root mean square over the rounded steps:

    q_s = round(W_s / unit)              each weight is off by at most unit / 2, 0.05 % of the root mean square
    d_s = q_s - q_(s-1), q_(-1) = 0      small numbers, because a parameter moves little from one kept step to the next

The differences are written as 2d for d >= 0 and -2d - 1 for d < 0, four bytes each. Each step holds the lowest bytes of
all entries, then the second bytes, and so on. All steps are deflated together. The file holds `differences/NAME` (the
deflated bytes) and `unit/NAME` for each parameter. The weights read back are float32 and exactly unit q_s, so rounding
them again with the same unit changes nothing.
"""

import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from induction_memory.errors import DamagedError, InputError
from induction_memory.model.config import AnyModel
from induction_memory.trajectory.manifest import ROUNDED, Manifest, Piece, digest, open_regular, write_piece

_KINDS = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I64": np.int64, "U8": np.uint8}
_CODES = {torch.from_numpy(np.empty(0, kind)).dtype: code for code, kind in _KINDS.items()}
_LARGEST_HEADER = 100_000_000


def write_tensors(
    path: Path,
    like: Mapping[str, Tensor],
    steps: Sequence[int] = (),
    *,
    run: str | None = None,
    read: Callable[[str, int], Tensor] | None = None,
) -> Piece:
    """Write whole tensors, one block each; or, with `read`, tensors with a leading step axis, with one block in memory
    at a time.

    `read` returns the block of a name and a step; `like` has the name, type and shape of each block. Every block is
    read twice, because the checksums are in the header, before the data. `run` is the identity of the run.
    """

    def blocks(name: str) -> Iterator[memoryview]:
        if read is None:
            yield as_bytes(like[name])
        else:
            for step in steps:
                yield as_bytes(read(name, step))

    tensors: dict[str, Any] = {}
    checksums, offset = {}, 0
    for name, one in like.items():
        shape = list(one.shape) if read is None else [len(steps), *one.shape]
        size = math.prod(shape) * one.element_size()
        tensors[name] = {"dtype": _CODES[one.dtype], "shape": shape, "data_offsets": [offset, offset + size]}
        checksums[name] = "".join(f"{zlib.crc32(block):08x}" for block in blocks(name))
        offset += size
    metadata = {
        "format": "induction_memory",
        "steps": json.dumps(list(map(int, steps))),
        "stacked": "false" if read is None else "true",
        "checksums": json.dumps(checksums),
    }
    if run is not None:
        metadata["run"] = run
    seal = digest({"__metadata__": metadata, **tensors})
    text = json.dumps({"__metadata__": metadata | {"seal": seal}, **tensors}).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return write_piece(path, chain([head], chain.from_iterable(map(blocks, like))), seal)


def as_bytes(tensor: Shaped[Tensor, "..."]) -> memoryview:
    """A tensor's bytes, in row order."""
    return tensor.detach().cpu().contiguous().reshape(-1).numpy().view(np.uint8).data


@dataclass(frozen=True)
class Stored:
    """The place of a tensor in a file, and the CRC of each of its blocks."""

    dtype: Any
    shape: tuple[int, ...]
    start: int
    size: int
    checksums: str


class SealedFile:
    """A file of tensors with a checked header; tensors are read and checked on request."""

    def __init__(self, path: Path) -> None:
        """Read and check the header."""
        self.path = path
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _LARGEST_HEADER):
                raise DamagedError(path, f"a header of {length} bytes in a file of {size}")
            text = file.read(length)
        self.tensors: dict[str, Stored] = {}
        offset = 0
        try:
            header = json.loads(text.decode())
            self.seal = header["__metadata__"].pop("seal")
            if self.seal != digest(header):
                raise DamagedError(path, "a header that differs from its seal")
            metadata = header.pop("__metadata__")
            self.steps: tuple[int, ...] = tuple(json.loads(metadata["steps"]))
            self.stacked: bool = metadata["stacked"] == "true"
            self.run: str | None = metadata.get("run")
            checksums, blocks = json.loads(metadata["checksums"]), len(self.steps) if self.stacked else 1
            for name, entry in header.items():
                shape, dtype = tuple(entry["shape"]), _KINDS[entry["dtype"]]
                start, offset = offset, offset + math.prod(shape) * np.dtype(dtype).itemsize
                whole = len(checksums[name]) == 8 * blocks and min(shape, default=0) >= 0
                if not whole or entry["data_offsets"] != [start, offset] or (self.stacked and shape[0] != blocks):
                    raise ValueError(name)
                self.tensors[name] = Stored(dtype, shape, 8 + length + start, offset - start, checksums[name])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(path, "a header that does not describe tensors") from error
        if size != 8 + length + offset:
            raise DamagedError(path, f"{size} bytes instead of {8 + length + offset}")

    def read(self, name: str, step: int | None = None) -> Tensor:
        """A tensor, or one step of a stacked tensor; every block is checked."""
        if name not in self.tensors:
            raise DamagedError(self.path, f"a file without {name}")
        found = self.tensors[name]
        first, last, shape = 0, len(found.checksums) // 8, found.shape
        block = found.size // max(1, last)
        if step is not None:
            first, shape = self.steps.index(step), shape[1:]
            last = first + 1
        data = np.empty((last - first) * block, dtype=np.uint8)
        view = data.data
        with open_regular(self.path) as file:
            file.seek(found.start + first * block)
            if file.readinto(view) < len(view):
                raise DamagedError(self.path, f"a file that ends within {name}")
        for i in range(first, last):
            checksum = zlib.crc32(view[(i - first) * block : (i - first + 1) * block])
            if f"{checksum:08x}" != found.checksums[8 * i : 8 * i + 8]:
                where = f" at step {self.steps[i]}" if self.stacked else ""
                raise DamagedError(self.path, f"flipped bits in {name}{where}")
        return torch.from_numpy(data.view(found.dtype).reshape(shape))

    def read_all(self, prefix: str = "", step: int | None = None) -> dict[str, Tensor]:
        """The tensors whose names begin with the prefix, by the rest of their names."""
        return {n.removeprefix(prefix): self.read(n, step) for n in self.tensors if n.startswith(prefix)}

    def check(self) -> None:
        """Check every block."""
        for name in self.tensors:
            self.read(name)


W_E, W_U = "embed.W_E", "unembed.W_U"


def stored_names(config: AnyModel, names: Iterable[str]) -> tuple[str, ...]:
    """The names of the parameters that are stored."""
    return tuple(name for name in names if name != W_U) if config.tied_output else tuple(names)


def with_tied(config: AnyModel, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with a tied W_U added."""
    return dict(state) | ({W_U: state[W_E].mT} if config.tied_output else {})


def checksum(config: AnyModel, state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names and bytes of a state's stored parameters."""
    whole = hashlib.sha256()
    for name in sorted(stored_names(config, state)):
        whole.update(name.encode() + b"\0")
        whole.update(as_bytes(state[name]))
    return whole.hexdigest()


def open_listed(folder: Path, manifest: Manifest, name: str) -> SealedFile:
    """Open a file that the manifest lists; its header must match the manifest."""
    path = folder / name
    if name not in manifest.pieces:
        raise DamagedError(path, "a manifest that does not list it")
    found = SealedFile(path)
    if found.seal != manifest.pieces[name].seal:
        raise DamagedError(path, "another file than the manifest lists")
    return found


def open_state(path: Path, manifest: Manifest, step: int | None = None) -> SealedFile:
    """Open the state of one step; it must belong to the manifest's run and to this step."""
    found = SealedFile(path)
    if len(found.steps) != 1 or step not in (None, found.steps[0]):
        raise DamagedError(path, f"the state of {' and '.join(map(str, found.steps)) or 'no'} step")
    if found.run != manifest.identity:
        raise DamagedError(path, "the state of another run")
    return found


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
    """Write these steps of these parameters; a unit missing in `units` is computed from the weights."""
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
    """The rounded steps of a run. A parameter is inflated on first use, and kept."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.file = open_listed(folder, manifest, ROUNDED)
        self._read: dict[str, Tensor] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        return self.file.steps

    @cached_property
    def units(self) -> dict[str, float]:
        """Parameter -> its unit."""
        names = [name.removeprefix(_UNIT) for name in self.file.tensors if name.startswith(_UNIT)]
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
