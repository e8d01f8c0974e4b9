"""Which keys a head would attend to, as masks over (query, key): the building blocks of a task's sources."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from induction_memory.task.batch import Batch
from induction_memory.task.protocol import NotOfferedError, Task, ask


def previous(tokens: Int[Tensor, "batch pos"], n: int = 1) -> Bool[Tensor, "batch query key"]:
    """The n positions before the query."""
    back = _back(tokens)
    return ((back >= 1) & (back <= n)).expand(len(tokens), -1, -1)


def after_same_context(tokens: Int[Tensor, "batch pos"], n: int = 1) -> Bool[Tensor, "batch query key"]:
    """Keys up to the query that follow an earlier occurrence of the last n tokens: what an induction head looks for."""
    batch, pos = tokens.shape
    same = torch.ones(batch, pos, pos, dtype=torch.bool, device=tokens.device)
    padded = torch.nn.functional.pad(tokens, (n, 0), value=-1)
    for i in range(n):
        query, key = padded[:, n - i : n - i + pos], padded[:, n - 1 - i : n - 1 - i + pos]
        same &= (query[:, :, None] == key[:, None, :]) & (key >= 0)[:, None, :]
    return same & (_back(tokens) >= 0)


def sources_of(task: Task, batch: Batch) -> dict[str, Bool[Tensor, "batch query key"]]:
    """The sources that a task names, where the batch is; the task itself computes on the CPU."""
    device = batch.tokens.device
    offered = ask(task, "sources", batch if device.type == "cpu" else batch.to("cpu"))
    return {role: keys.to(device) for role, keys in offered.items()}


def induction_keys(batch: Batch, task: Task | None) -> Bool[Tensor, "batch query key"]:
    """The keys of the source `induction` of a task; without a task, those after earlier occurrences of the query."""
    if task is None:
        return after_same_context(batch.tokens)
    offered = sources_of(task, batch)
    if "induction" not in offered:
        raise NotOfferedError(f"needs the source induction, the task {task.name!r} names {', '.join(offered)}")
    return offered["induction"]


def one_key(key: Int[Tensor, "batch query"], pos: int) -> Bool[Tensor, "batch query key"]:
    """One key per query; none where it is negative."""
    return key[:, :, None] == torch.arange(pos, device=key.device)


def _back(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "query key"]:
    """How far the key lies before the query."""
    here = torch.arange(tokens.shape[1], device=tokens.device)
    return here[:, None] - here[None, :]
