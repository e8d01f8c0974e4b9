"""Tensors that say they live on another device, to find tensors that code makes on the CPU without being asked.

An `Elsewhere` computes on the CPU and reports the device `meta`. An operation that mixes it with a plain CPU tensor of
one or more axes is refused, as a GPU would refuse it; numbers may be mixed.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

META = torch.device("meta")


class Elsewhere(torch.Tensor):
    """A CPU tensor in disguise."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Elsewhere":
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=META, strides=inner.stride(), requires_grad=False
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Elsewhere({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        flat, _ = tree_flatten((args, kwargs))
        strays = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, cls) and x.dim() > 0]
        to_cpu = kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu"
        copies = function._schema.name in ("aten::_to_copy", "aten::copy_")
        if strays and not copies:
            raise AssertionError(f"{function} mixes devices: a CPU tensor of shape {tuple(strays[0].shape)}")
        if torch.device(kwargs.get("device") or "cpu") == META:
            kwargs["device"] = "cpu"
        args, kwargs = tree_map(lambda x: x.inner if isinstance(x, cls) else x, (args, kwargs))
        out = function(*args, **kwargs)
        if to_cpu:
            return out
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, out)


class MadeThere(torch.overrides.TorchFunctionMode):
    """Inside, `torch.ones(..., device=meta)` and the like make an `Elsewhere`, and `tolist` brings numbers back."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu) and isinstance(args[0], Elsewhere):
            return function(args[0].inner)
        made_there = kwargs.get("device") is not None and torch.device(kwargs["device"]) == META
        flat, _ = tree_flatten((args, kwargs))
        if made_there and not any(isinstance(x, Elsewhere) for x in flat):
            kwargs["device"] = "cpu"
            return Elsewhere(function(*args, **kwargs))
        to_there = function is torch.Tensor.to and not isinstance(args[0], Elsewhere)
        asked = [torch.device(x) if isinstance(x, str) else x for x in args[1:]]
        if to_there and any(isinstance(x, Elsewhere) or x == META for x in asked):
            like = next((x for x in args[1:] if isinstance(x, Elsewhere)), None)
            return Elsewhere(args[0] if like is None else args[0].to(like.inner))
        return function(*args, **kwargs)
