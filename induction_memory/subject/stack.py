"""Weights of some steps as a probe reads them: their memories and associations, with the task they were trained on."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from induction_memory.errors import UnsupportedError, require
from induction_memory.field_docs import field_docs
from induction_memory.memory.association import Association
from induction_memory.model.associations import associate, fact, required
from induction_memory.model.memories import Memories, has_step_axis
from induction_memory.runner.parameters import parameters
from induction_memory.task.protocol import Task


@field_docs
@dataclass(frozen=True)
class Stack(Memories):
    """The weights of some steps, with the task if it is known. Axes are those of `Memories`: step, then heads."""

    n_steps: int = 1
    """How many steps."""
    task: Task | None = None
    """The task, for probes that need its tables."""
    initial: Mapping[str, Tensor] | None = None
    """The weights at initialisation, without a step axis, if they are known."""

    @property
    def length(self) -> int:
        """T: the number of positions that the task uses, or that the model has."""
        self.require_weights("pos_embed.W_pos", "learned positions")
        n_ctx = self.weights["pos_embed.W_pos"].shape[-2]
        return n_ctx if self.task is None else min(n_ctx, self.task.length)

    def association(self, what: str) -> Association:
        """What a matrix associates, by the names of `model/memory_names.py`: `W_K2`, `W_K1[0:64]_causal` ..."""
        return associate(self, what, task=self.task)

    def require_task(self) -> Task:
        return required(self.task)

    def fact(self, name: str, what: str) -> Any:
        """An attribute that only some tasks have, such as `bigram`; for other tasks an error."""
        return fact(self.task, name, what)

    def require_initial(self) -> Mapping[str, Tensor]:
        if self.initial is None:
            raise UnsupportedError("needs the weights at initialisation, which only a trajectory can know")
        return self.initial

    def at(self, steps: slice) -> "Stack":
        """The same source at some of its steps (the positions in the stack, not the training steps)."""
        n_steps = len(range(*steps.indices(self.n_steps)))
        return Stack(at_steps(self.weights, steps), n_steps, self.task, self.initial, refusal=self.refusal)


@dataclass(frozen=True)
class Lazy(Mapping[str, Tensor]):
    """Weights by name, each read when it is first asked for."""

    names: tuple[str, ...]
    read: Callable[[str], Tensor]
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        if name not in self.kept:
            self.kept[name] = self.read(name)
        return self.kept[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def at_steps(weights: Mapping[str, Tensor], rows: slice | Int[np.ndarray, " step"]) -> Lazy:
    """Some steps of stacked weights; a weight without a step axis is left as it is."""

    def read(name: str) -> Tensor:
        weight = weights[name]
        return weight[rows] if has_step_axis(name, weight) else weight

    return Lazy(tuple(weights), read)


def number_of_steps(weights: Mapping[str, Tensor]) -> int:
    """How many steps are stacked."""
    lengths = {len(weight) for name, weight in weights.items() if has_step_axis(name, weight)}
    require(len(lengths) <= 1, "weights", "the same number of steps in each", sorted(lengths))
    return lengths.pop() if lengths else 1


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model from which memories are read, by HookedTransformer's names.

    Only linear and ReLU feed-forwards are included.
    """
    from induction_memory.model.building import MLP

    cfg: Any = model.cfg
    replaced = any(type(module) is MLP and module.act_fn is not F.relu for module in model.modules())
    readable = is_plain_relu(cfg.act_fn, getattr(cfg, "gated_mlp", False)) and not replaced
    return {n: w for n, w in parameters(model).items() if readable or ".mlp." not in n or n.endswith("W_F")}


def is_plain_relu(act_fn: str | None, gated: bool) -> bool:
    """Whether a feed-forward is relu(x W_in) W_out."""
    return act_fn == "relu" and not gated
