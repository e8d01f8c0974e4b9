"""What is boxed and marked in a map of attention over one sequence.

If a sequence has triggers with outputs, the keys after earlier occurrences of the query are boxed: `right` if the key
is the query's output, `other` if not. For other tasks the keys of the sources that the task names are boxed, `right` at
queries of the main group and `other` at other queries. The source `previous` is left out, because it would box the
whole line below the diagonal. Among the tokens, triggers and their outputs are marked, or else the queries of the main
group.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.task.batch import Batch
from induction_memory.task.positions import after_same_context, sources_of
from induction_memory.task.protocol import Task


def telling_rows(batch: Batch, length: int | None) -> list[int]:
    """All rows, those with the most different tokens in the main group first, ties by the number of queries."""
    asked = torch.where(batch.group(), batch.tokens, -1)[:, :length]
    score = [(len(row[row >= 0].unique()), int((row >= 0).sum())) for row in asked]
    return sorted(range(len(batch)), key=lambda i: score[i], reverse=True)


def row_marks(batch: Batch, row: int, length: int | None, task: Task | None) -> dict[str, np.ndarray]:
    """Boxes and marked positions of a row of a batch, cut to `length`."""
    tokens = batch.tokens[row, :length].cpu()
    if "triggers" in batch.latents and "outputs" in batch.latents:
        triggers, outputs = (batch.latents[name][row].tolist() for name in ("triggers", "outputs"))
        return trigger_marks(tokens, dict(zip(triggers, outputs, strict=True)))
    return source_marks(batch[row : row + 1], length, task)


def trigger_marks(tokens: Int[Tensor, " pos"], pairs: Mapping[int, int]) -> dict[str, np.ndarray]:
    """Boxes and marked positions of a sequence, given its triggers and their outputs."""
    boxed = after_same_context(tokens[None])[0]
    answer = torch.tensor([pairs.get(int(z), -1) for z in tokens])
    is_right = answer[:, None] == tokens[None, :]
    is_trigger = answer >= 0
    is_output = torch.zeros_like(is_trigger)
    is_output[1:] = is_trigger[:-1] & (answer[:-1] == tokens[1:])
    return _arrays(right=boxed & is_right, other=boxed & ~is_right, triggers=is_trigger, outputs=is_output)


def source_marks(batch: Batch, length: int | None, task: Task | None) -> dict[str, np.ndarray]:
    """Boxes and marked positions of a batch of one sequence, by the sources that the task names, if any."""
    queries = batch.group()[0].cpu()
    try:
        sources: dict[str, Any] = {} if task is None else sources_of(task, batch)
    except UnsupportedError:
        sources = {}
    boxed: Bool[Tensor, "query key"] = torch.zeros(len(queries), len(queries), dtype=torch.bool)
    for role, keys in sources.items():
        if role != "previous":
            boxed = boxed | keys[0].cpu()
    cut = slice(length)
    asked = queries[:, None]
    return _arrays(
        right=(boxed & asked)[cut, cut],
        other=(boxed & ~asked)[cut, cut],
        triggers=queries[cut] & ~queries.all(),
        outputs=torch.zeros_like(queries)[cut],
    )


def _arrays(**tensors: Bool[Tensor, "..."]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
