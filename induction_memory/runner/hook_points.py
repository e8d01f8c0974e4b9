"""Two things done at TransformerLens's hook points: keep a value, and switch off the user's hooks."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


def keep(kept: dict[str, Tensor], name: str) -> Callable[..., None]:
    """A hook that keeps a copy of the value under this name."""

    def hook(value: Tensor, hook: Any) -> None:
        kept[name] = value.detach().clone()

    return hook


@contextmanager
def asleep(point: Any) -> Iterator[None]:
    """Inside the block, the hook point runs none of its hooks."""
    if point is None:
        yield
        return
    own = point._forward_hooks
    try:
        point._forward_hooks = OrderedDict()
        yield
    finally:
        point._forward_hooks = own
