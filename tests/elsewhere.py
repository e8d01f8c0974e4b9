"""Tensors that say they live on another device, to find tensors that code makes on the CPU without being asked.

An `Elsewhere` computes on the CPU and reports the device `meta`. An operation that mixes it with a plain CPU tensor of
one or more axes is refused, as a GPU would refuse it; numbers may be mixed.
"""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

META = torch.device("meta")
BROUGHT_BACK = (torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu, torch.Tensor.data_ptr)
"""Functions that are asked of the tensor inside: numbers that leave the device, and its address."""
COMPUTED_INSIDE = (torch.where, torch.nn.functional.scaled_dot_product_attention)
"""Functions for which torch makes a number or a mask on `meta`, where it has no value; without gradients."""


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
        if torch.device(kwargs.get("device") or "cpu").type == "meta":  # also meta:0
            kwargs["device"] = "cpu"
        same = {id(x.inner): x for x in flat if isinstance(x, cls)}  # x.add_(y) is x, as for every tensor
        args, kwargs = tree_map(_with_value, (args, kwargs))
        out = function(*args, **kwargs)
        if to_cpu:
            return out
        return tree_map(lambda x: (same[id(x)] if id(x) in same else cls(x)) if isinstance(x, torch.Tensor) else x, out)


def _inside(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


def _with_value(value: Any) -> Any:
    """The tensor inside; a number that torch itself made on `meta` is the zero in the backward of `where`."""
    number = isinstance(value, torch.Tensor) and value.device == META and value.dim() == 0
    return torch.zeros((), dtype=value.dtype) if number and not isinstance(value, Elsewhere) else _inside(value)


class MadeThere(torch.overrides.TorchFunctionMode):
    """Inside, `torch.ones(..., device=meta)` and the like make an `Elsewhere`, and `tolist` brings numbers back."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.__setitem__ and isinstance(args[0], Elsewhere) and not hasattr(args[2], "shape"):
            return function(args[0].inner, tree_map(_inside, args[1]), args[2])  # torch makes the number on `meta`
        if function in BROUGHT_BACK and isinstance(args[0], Elsewhere):
            return function(args[0].inner)
        number = function is not torch.where or any(isinstance(x, int | float) for x in args)
        if function in COMPUTED_INSIDE and number and any(isinstance(x, Elsewhere) for x in args):
            strays = [x for x in args if isinstance(x, torch.Tensor) and not isinstance(x, Elsewhere) and x.dim() > 0]
            assert not strays, f"{function} mixes devices: a CPU tensor of shape {tuple(strays[0].shape)}"
            return Elsewhere(function(*tree_map(_inside, args), **tree_map(_inside, kwargs)))
        made_there = kwargs.get("device") is not None and torch.device(kwargs["device"]) == META
        flat, _ = tree_flatten((args, kwargs))
        if made_there and not any(isinstance(x, Elsewhere) for x in flat):
            kwargs["device"], differentiable = "cpu", kwargs.pop("requires_grad", False)
            return Elsewhere(function(*args, **kwargs)).requires_grad_(differentiable)
        to_there = function is torch.Tensor.to and not isinstance(args[0], Elsewhere)
        asked = [*args[1:], kwargs.get("device")] if to_there else []
        asked = [torch.device(x) if isinstance(x, str) else x for x in asked if x is not None]
        if to_there and any(isinstance(x, Elsewhere) or getattr(x, "type", None) == "meta" for x in asked):
            like = next((x for x in args[1:] if isinstance(x, Elsewhere)), None)
            return Elsewhere(args[0] if like is None else args[0].to(like.inner))
        return function(*args, **kwargs)


def elsewhere(model: Any) -> Any:
    """The model with every parameter and buffer on the other device, as `model.to(...)` would leave it."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                there = torch.nn.Parameter(Elsewhere(value.detach()), requires_grad=value.requires_grad)
                module._parameters[name] = there
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = Elsewhere(value)
    model.cfg.device = "meta"
    return model
