"""Arrays and JSON as one gzip blob, and back.

The blob is the length of the JSON in four bytes, the JSON, then the arrays one after another. The JSON's `arrays` has
the dtype, shape and offset of each. Numbers that are shown only as colours are quantised:

    value = low + (high - low) * code / (2^bits - 1)

so a value is off by at most half of `step = (high - low) / (2^bits - 1)`. A 16-bit array has its high bytes before its
low bytes, which compresses better. Several runs are joined into one pack, which is reduced until the page fits its
budget. The page says what was left out.
"""

import gzip
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Num, UInt

from induction_memory.errors import InputError
from induction_memory.views.page.document import document

LEVEL = 6  # gzip level; higher ones take longer and gain one percent


@dataclass(frozen=True, eq=False)
class Quantised:
    """Codes of 8 or 16 bits and their range."""

    codes: UInt[np.ndarray, "..."]
    low: float
    high: float

    @property
    def step(self) -> float:
        """The difference between neighbouring codes' values."""
        return (self.high - self.low) / np.iinfo(self.codes.dtype).max

    @property
    def values(self) -> np.ndarray:
        return self.low + self.step * self.codes.astype(np.float64)


def quantise(
    values: Num[np.ndarray, "..."], bits: int = 16, low: float | None = None, high: float | None = None
) -> Quantised:
    """The values in 8 or 16 bits, over `within`, by default their range; nan becomes the lowest value."""
    finite = values[np.isfinite(values)]
    low = float(finite.min(initial=0.0)) if low is None else low
    high = float(finite.max(initial=0.0)) if high is None else high
    most = 2**bits - 1
    scaled = (np.nan_to_num(values, nan=low) - low) / ((high - low) or 1.0) * most
    return Quantised(np.rint(np.clip(scaled, 0, most)).astype(f"<u{bits // 8}"), low, high)


@dataclass
class Pack:
    """A JSON document and named arrays that become one blob."""

    meta: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray | Quantised] = field(default_factory=dict)

    @property
    def of_triggers(self) -> bool:
        """Whether all its runs are of sequences with triggers."""
        return all(run["triggers"] for run in self.meta["runs"])

    def blob(self) -> bytes:
        """The gzip blob; the same content gives the same bytes."""
        index, parts, offset = {}, [], 0
        for name, array in self.arrays.items():
            codes = array.codes if isinstance(array, Quantised) else np.ascontiguousarray(array)
            kind = codes.dtype.str.lstrip("<|=")
            index[name] = {"dtype": kind, "shape": list(codes.shape)}
            if isinstance(array, Quantised):
                index[name] |= {"low": array.low, "high": array.high}
            index[name]["offset"] = offset
            if kind == "u2":
                parts.append(np.stack([codes >> 8, codes & 255]).astype(np.uint8).tobytes())
            else:
                parts.append(codes.astype(codes.dtype.newbyteorder("<")).tobytes())
            offset += len(parts[-1])
        header = json.dumps(self.meta | {"arrays": index}, separators=(",", ":"), allow_nan=False).encode()
        return gzip.compress(struct.pack("<I", len(header)) + header + b"".join(parts), LEVEL, mtime=0)


def plain(values: Any) -> list[Any]:
    """Numbers for JSON, rows as lists; None for a number that is not finite."""
    numbers = np.asarray(values, dtype=float)
    found = numbers.astype(object)
    found[~np.isfinite(numbers)] = None
    return found.tolist()


def unpack(blob: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON and the arrays' values, decoded as in the page."""
    raw = gzip.decompress(blob)
    (length,) = struct.unpack_from("<I", raw)
    meta = json.loads(raw[4 : 4 + length])
    arrays = {}
    for name, entry in meta.pop("arrays").items():
        count, start = int(np.prod(entry["shape"])), 4 + length + entry["offset"]
        if entry["dtype"] == "u2":
            planes = np.frombuffer(raw, np.uint8, 2 * count, start).astype(np.uint16).reshape(2, count)
            array = (planes[0] << 8 | planes[1]).reshape(entry["shape"])
        else:
            array = np.frombuffer(raw, f"<{entry['dtype']}", count, start).reshape(entry["shape"])
        if "low" in entry:
            array = Quantised(array, entry["low"], entry["high"]).values
        arrays[name] = array
    return meta, arrays


OF_SEQUENCES = ("attention", "loss", "likely", "probability")
FEWEST_STEPS = 5


def within(packs: Sequence[Pack], title: str, budget: int) -> Pack:
    """The packs joined, with the first reduction that fits into `budget` bytes of HTML.

    The reductions are tried in this order: none; 8 bits behind colours; one sequence; half of the steps, repeatedly.
    """
    frame = len(document(title, b""))
    size, most = 0, max([len(pack.meta["steps"]) for pack in packs])
    plans = [(16, None, most), (8, None, most), (8, 1, most)]
    while most > FEWEST_STEPS:
        most = max(FEWEST_STEPS, most // 2)
        plans.append((8, 1, most))
    for bits, rows, steps in plans:
        joined = join([reduced(pack, bits, rows, steps) for pack in packs])
        size = frame + 4 * (len(joined.blob()) + 2) // 3
        if size <= budget:
            return joined
    raise InputError(f"budget: expected at least {size} bytes for {FEWEST_STEPS} steps, got {budget}")


def join(packs: Sequence[Pack]) -> Pack:
    """One pack of several runs; names of arrays begin with the number of their run."""
    joined = Pack({"runs": []})
    for i, pack in enumerate(packs):
        joined.meta["runs"].append(pack.meta)
        joined.arrays |= {f"{i} {name}": array for name, array in pack.arrays.items()}
    return joined


def reduced(pack: Pack, bits: int, rows: int | None, steps: int) -> Pack:
    """A pack with coarser colours, fewer sequences or fewer steps; its `notes` say so."""
    meta, arrays, notes = dict(pack.meta), dict[str, Any](pack.arrays), []
    if bits < 16:
        for name, array in arrays.items():
            if isinstance(array, Quantised) and (name == "attention" or name.startswith("table")):
                arrays[name] = quantise(array.values, bits, array.low, array.high)
        meta["memories"] = [m | {"quantum": arrays[m["array"]].step} for m in meta["memories"]]
        notes.append(f"attention and memories are stored in {bits} bits")
    if rows is not None and rows < len(meta["sequences"]):
        notes.append(f"{rows} of {len(meta['sequences'])} sequences")
        meta["sequences"] = meta["sequences"][:rows]
        arrays |= {name: _take(arrays[name], np.s_[:, :rows]) for name in OF_SEQUENCES}
    if steps < len(meta["steps"]):
        kept = np.unique(np.rint(np.linspace(0, len(meta["steps"]) - 1, steps)).astype(int))
        notes.append(f"{len(kept)} of {len(meta['steps'])} steps")
        meta["steps"] = [meta["steps"][i] for i in kept]
        for name, array in arrays.items():
            if name in OF_SEQUENCES or name.startswith("table") or name.endswith((" codes", " scale")):
                arrays[name] = _take(array, kept)
    meta["notes"] = notes
    return Pack(meta, arrays)


def _take(array: np.ndarray | Quantised, index: Any) -> np.ndarray | Quantised:
    if isinstance(array, Quantised):
        return Quantised(array.codes[index], array.low, array.high)
    return array[index]
