"""Heads that share keys and values (grouped queries), as weights with one matrix per head.

TransformerLens stores one key and one value matrix per group of heads, under `_W_K`, `_W_V`, `_b_K` and `_b_V`. Head h
uses those of group h // (heads per group), so `W_K` repeats each of them for every head of its group.
"""

from collections.abc import Iterator, Mapping

from torch import Tensor

_AXES_AFTER_HEAD = {"W_K": 2, "W_V": 2, "b_K": 1, "b_V": 1}


def ungrouped(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights with `W_K`, `W_V` and their biases for each head; the mapping itself if no heads are grouped."""
    return Ungrouped(weights) if any(name.endswith("attn._W_K") for name in weights) else weights


class Ungrouped(Mapping[str, Tensor]):
    """Weights of a model with grouped heads, each matrix repeated when it is asked for."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._names = tuple(name.replace(".attn._", ".attn.") for name in weights)

    def __getitem__(self, name: str) -> Tensor:
        block, _, kind = name.rpartition(".")
        if f"{block}._{kind}" not in self._weights:
            return self._weights[name]
        shared = self._weights[f"{block}._{kind}"]
        axis = -1 - _AXES_AFTER_HEAD[kind]
        heads = self._weights[f"{block}.W_Q"].shape[-3]
        return shared.repeat_interleave(heads // shared.shape[axis], dim=axis)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
