"""Memory that is used again from one micro-batch to the next.

Fresh memory costs page faults on every micro-batch; a named buffer that stays does not, and it stays in cache.
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
