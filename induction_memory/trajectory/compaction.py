"""From one file per step to one stacked file: each parameter [step, ...], one step of it a contiguous block.

One matrix over all steps, or at one step, is then a single read. Only one block is in memory at a time. Each block is
checked when it is read, and each file must belong to its run and step, so that damage is found here and not copied.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torch import Tensor

from induction_memory.trajectory.durable import Piece, piece_of
from induction_memory.trajectory.layout import METRICS, OPTIMIZER, OPTIMIZER_PREFIX, TRAINED, step_path
from induction_memory.trajectory.sealed import SealedFile, write_stack


def compact(folder: Path, steps: Sequence[int], run: str | None) -> dict[str, Piece]:
    """Write the stacked files of a run from the files of its steps; return their pieces and that of the metrics."""
    opened = cache(lambda step: SealedFile.open_step(step_path(folder, step), run, step))
    with_optimizer = [s for s in steps if any(n.startswith(OPTIMIZER_PREFIX) for n in opened(s).entries)]

    def stack(target: str, prefix: str, chosen: Sequence[int]) -> Piece:
        def read(name: str, step: int) -> Tensor:
            return opened(step).read(prefix + name)

        names = [n for n in opened(chosen[-1]).entries if n.startswith(OPTIMIZER_PREFIX) == bool(prefix)]
        first = {n.removeprefix(prefix): opened(chosen[-1]).entries[n] for n in names}
        return write_stack(folder / target, chosen, first, read)

    return {
        TRAINED: stack(TRAINED, "", steps),
        OPTIMIZER: stack(OPTIMIZER, OPTIMIZER_PREFIX, with_optimizer),
        METRICS: piece_of(folder / METRICS),
    }
