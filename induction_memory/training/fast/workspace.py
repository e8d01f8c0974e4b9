"""Memory that is used again from one micro-batch to the next.

New memory costs page faults in every micro-batch. A named buffer that is kept costs none, and stays in the CPU cache.

Sums of gradients over the sequences of a batch.
"""

import math

import torch
from torch import Tensor


class Workspace:
    """Named float32 buffers on one device. A buffer's contents last until its name is asked for again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """A contiguous tensor of that shape, not initialised, in the memory kept under that name."""
        size = math.prod(shape)
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name] = torch.empty(size, device=self.device)
        return buffer[:size].view(shape)


class Sums:
    """Named sums that start at zero, on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sums: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """The sum of that name; the caller adds to it in place."""
        if name not in self._sums:
            self._sums[name] = torch.zeros(shape, device=self.device)
        return self._sums[name]

    def add(self, other: "Sums") -> None:
        """Add all of the other's sums to these."""
        for name, value in other._sums.items():
            self(name, *value.shape).add_(value)
