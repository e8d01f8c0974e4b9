"""Weights of many steps as memories and embeddings with fixed axes, so that a probe is written once.

    memory     [step, head, d_out, d_in]     W_K1, W_O2, Phi_1 ... in the paper's orientation
    embedding  [step, head, n, d]            w_E, p, w_U, or remapped: Phi_1 w_E

A weight that does not move has a step axis of one, and so has everything made of such weights: frozen embeddings are
remapped once, not once a step. Embeddings that are not remapped have a head axis of one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from induction_memory.errors import InputError
from induction_memory.model import memories
from induction_memory.task.bigrams import BigramTask

BASE_AXES = {"W_E": 2, "W_pos": 2, "W_U": 2, "W_Q": 3, "W_K": 3, "W_V": 3, "W_O": 3, "W_F": 2, "W_in": 2, "W_out": 2}
BASE_AXES |= {"w": 1, "b": 1, "b_Q": 2, "b_K": 2, "b_V": 2, "b_O": 1, "b_U": 1, "b_in": 1, "b_out": 1}


class UnsupportedError(InputError):
    """A probe was asked of a source that cannot have it; the message is the reason, in one line."""


@dataclass(frozen=True)
class Stack:
    """The weights of some steps, with the task they were trained on if it is known."""

    weights: Mapping[str, Tensor]
    """TransformerLens's name -> tensor; a leading step axis on what moves."""
    n_steps: int
    """How many steps."""
    task: BigramTask | None = None
    """The task, for probes that need its tables."""
    initial: Mapping[str, Tensor] | None = None
    """The weights of the first step of the run, without a step axis, when they are known."""
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """What has been computed already, by name."""

    @cached_property
    def n_layers(self) -> int:
        return memories.number_of_layers(self.weights)

    @property
    def n_heads(self) -> int:
        return self.weights["blocks.0.attn.W_K"].shape[-3]

    @property
    def d_model(self) -> int:
        return self.weights["embed.W_E"].shape[-1]

    @property
    def length(self) -> int:
        """T: the positions that the task uses, or all there are."""
        self.require_weights("pos_embed.W_pos", "learned positions")
        n_ctx = self.weights["pos_embed.W_pos"].shape[-2]
        return n_ctx if self.task is None else min(n_ctx, self.task.length)

    @property
    def vocab_size(self) -> int:
        return self.weights["embed.W_E"].shape[-2]

    def memory(self, name: str) -> Float[Tensor, "step head d_out d_in"]:
        """The matrix `name` of each step and head (`memories.memory`); W_F has one head."""

        def compute() -> Tensor:
            W = memories.memory(self.weights, name)
            if self.n_heads == 1 or name.startswith("W_F"):
                W = W.unsqueeze(-3)
            return W if W.dim() == 4 else W[None]

        return self.once(name, compute)

    def embedding(self, name: str) -> Float[Tensor, "step head n d"]:
        """Rows of `w_E`, `p` or `w_U`; a matrix before it, as in `Phi_1 w_E`, remaps them."""

        def compute() -> Tensor:
            *remaps, rows_name = name.split(" ")
            rows = memories.embedding(self.weights, rows_name)
            rows = rows[None, None] if rows.dim() == 2 else rows[:, None]
            for remap in reversed(remaps):
                rows = rows @ self.memory(remap).mT
            return rows

        return self.once(name, compute)

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """The value kept under this name, computed at the first request."""
        if name not in self.kept:
            self.kept[name] = compute()
        return self.kept[name]

    def require_layers(self, n: int) -> None:
        if self.n_layers < n:
            raise UnsupportedError(f"needs {n} layers, the model has {self.n_layers}")

    def require_weights(self, name: str, what: str) -> None:
        if name not in self.weights:
            raise UnsupportedError(f"needs {what}, the model has none")

    def require_task(self) -> BigramTask:
        if self.task is None:
            raise UnsupportedError("needs the task (pass task=...), a model alone does not say it")
        return self.task

    def require_initial(self) -> Mapping[str, Tensor]:
        if self.initial is None:
            raise UnsupportedError("needs the weights at initialisation, a model alone does not keep them")
        return self.initial

    def at(self, steps: slice) -> "Stack":
        """The same source at some of its steps (the positions in the stack, not the training steps)."""
        n_steps = len(range(*steps.indices(self.n_steps)))
        return Stack(at_steps(self.weights, steps), n_steps, self.task, self.initial)


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
    """Some steps of stacked weights; what does not move is left as it is."""

    def read(name: str) -> Tensor:
        weight = weights[name]
        return weight[rows] if has_step_axis(name, weight) else weight

    return Lazy(tuple(weights), read)


def has_step_axis(name: str, weight: Tensor) -> bool:
    """Whether a parameter of this name has one axis more than TransformerLens gives it."""
    kind = name.rsplit(".", 1)[-1]
    if kind not in BASE_AXES:
        raise InputError(f"weights: expected parameters of a TransformerLens model, got {name!r}")
    return weight.dim() == BASE_AXES[kind] + 1


def where_finite(function: Callable[[Tensor], Tensor], W: Float[Tensor, "*lead m n"]) -> Shaped[Tensor, "..."]:
    """`function` of each matrix, nan for those that are not finite: decompositions refuse them, and with them all."""
    finite = W.isfinite().all(-1).all(-1)
    value = function(W.masked_fill(~finite[..., None, None], 0.0))
    return value.masked_fill(~finite.reshape(finite.shape + (1,) * (value.dim() - finite.dim())), torch.nan)


def head_labels(n_heads: int, axes: int) -> list[str]:
    """Names of the heads of a value with this many head axes: "" for a single head, "1", or "0>1" for a pair."""
    if n_heads == 1 or axes == 0:
        return [""]
    return [">".join(map(str, index)) for index in np.ndindex(*[n_heads] * axes)]


def over_chunks(
    stack: Stack, names: list[str], measure: Callable[[Stack, str], Tensor], chunk: int
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Measure each name on a few steps at a time, so that the score tables stay small.

    Returns name -> [step, *head] in double precision, and name -> reason for those this source cannot have.
    """
    values: dict[str, list[Tensor]] = {name: [] for name in names}
    skipped: dict[str, str] = {}
    for start in range(0, stack.n_steps, chunk):
        part = stack.at(slice(start, start + chunk))
        for name in names:
            if name in skipped:
                continue
            try:
                value = measure(part, name).double()
            except UnsupportedError as reason:
                skipped[name] = str(reason)
                continue
            values[name].append(value.expand(part.n_steps, *value.shape[1:]))
    return {name: torch.cat(parts) for name, parts in values.items() if name not in skipped}, skipped
