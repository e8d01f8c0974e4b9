"""Sums of gradients over the sequences of a batch."""

import torch
from torch import Tensor


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
