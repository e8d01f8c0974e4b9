"""Arrays and JSON as one gzip blob, and back.

The blob is the length of the JSON in four bytes, the JSON, then the arrays one after another. The JSON's `arrays` has
the dtype, shape and offset of each. Numbers that are shown only as colours are quantised:

    value = low + (high - low) * code / (2^bits - 1)

so a value is off by at most half of `step = (high - low) / (2^bits - 1)`. The high bytes of a 16-bit array stand before
its low bytes, which compresses better.
"""

import gzip
import json
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Num, UInt

LEVEL = 6  # compression level of gzip; higher ones take longer and gain a percent


@dataclass(frozen=True, eq=False)
class Quantised:
    """Codes of 8 or 16 bits and the range they stand for."""

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
    """The values in 8 or 16 bits, over their own range or a given one; a nan is kept as the lowest value."""
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

    def blob(self) -> bytes:
        """The gzip blob; the same content gives the same bytes."""
        index, parts, offset = {}, [], 0
        for name, array in self.arrays.items():
            entry, data = _entry(array)
            index[name] = entry | {"offset": offset}
            parts.append(data)
            offset += len(data)
        header = json.dumps(self.meta | {"arrays": index}, separators=(",", ":"), allow_nan=False).encode()
        return gzip.compress(struct.pack("<I", len(header)) + header + b"".join(parts), LEVEL, mtime=0)


def unpack(blob: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON and the arrays' values, as the page reads them."""
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


def _entry(array: np.ndarray | Quantised) -> tuple[dict[str, Any], bytes]:
    codes = array.codes if isinstance(array, Quantised) else np.ascontiguousarray(array)
    kind = codes.dtype.str.lstrip("<|=")
    entry: dict[str, Any] = {"dtype": kind, "shape": list(codes.shape)}
    if isinstance(array, Quantised):
        entry |= {"low": array.low, "high": array.high}
    if kind == "u2":
        planes = np.stack([codes >> 8, codes & 255]).astype(np.uint8)
        return entry, planes.tobytes()
    return entry, codes.astype(codes.dtype.newbyteorder("<")).tobytes()
