"""Measure many steps a few at a time."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.subject.stack import Stack


def over_chunks(
    stack: Stack, measures: Mapping[str, Callable[[Stack], Tensor]], chunk: int
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Measure a few steps at a time, so that the score tables stay small.

    Returns name -> [step, *head] in double precision, and name -> reason for probes that this source cannot have.
    """
    values: dict[str, list[Tensor]] = {name: [] for name in measures}
    skipped: dict[str, str] = {}
    for start in range(0, stack.n_steps, chunk):
        part = stack.at(slice(start, start + chunk))
        for name, measure in measures.items():
            if name in skipped:
                continue
            try:
                value = measure(part).double()
            except UnsupportedError as reason:
                skipped[name] = str(reason)
                continue
            values[name].append(value.expand(part.n_steps, *value.shape[1:]))
    return {name: torch.cat(parts) for name, parts in values.items() if name not in skipped}, skipped
