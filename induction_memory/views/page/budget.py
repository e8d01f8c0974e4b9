"""Runs joined into one pack, which is reduced until the page fits its budget; the page says what was left out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from induction_memory.errors import InputError
from induction_memory.views.page.document import document
from induction_memory.views.page.pack import Pack, Quantised, quantise

OF_SEQUENCES = ("attention", "loss", "likely", "probability")
FEWEST_STEPS = 5


def within(packs: Sequence[Pack], title: str, budget: int) -> Pack:
    """The packs as one, with the first reduction that fits into `budget` bytes of HTML.

    The reductions are tried in this order: none; 8 bits behind colours; one sequence; half of the steps, repeatedly.
    """
    frame = len(document(title, b""))
    size, most = 0, max(len(pack.meta["steps"]) for pack in packs)
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
    arrays = {f"{i} {name}": array for i, pack in enumerate(packs) for name, array in pack.arrays.items()}
    return Pack({"runs": [pack.meta for pack in packs]}, arrays)


def reduced(pack: Pack, bits: int, rows: int | None, steps: int) -> Pack:
    """A pack with coarser colours, fewer sequences or fewer steps; its `notes` say so."""
    meta: dict[str, Any] = dict(pack.meta)
    arrays, notes = dict(pack.arrays), []
    if bits < 16:
        for name, array in arrays.items():
            if isinstance(array, Quantised) and (name == "attention" or name.startswith("table")):
                arrays[name] = quantise(array.values, bits, array.low, array.high)
        meta["memories"] = [m | {"quantum": _step(arrays[m["array"]])} for m in meta["memories"]]
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


def _step(array: np.ndarray | Quantised) -> float:
    assert isinstance(array, Quantised)
    return array.step
