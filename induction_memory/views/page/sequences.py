"""Attention and predictions over the sequences that the page shows, at every step.

Attention is stored up to the diagonal: row t of a map has its keys 0..t, so a map of n tokens is n (n + 1) / 2 numbers.
For each prediction the page has -log q of the right output (nan at positions without one) and the five most likely
outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.source.sources import Selection
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task
from induction_memory.views.attention_maps import row_marks

LIKELY = 5  # tokens listed for each prediction


@dataclass(frozen=True, eq=False)
class Shown:
    """Attention and predictions of the models of some steps on some sequences."""

    attention: Float[np.ndarray, "step row head entry"]
    """The lower triangle of each map, row after row."""
    loss: Float[np.ndarray, "step row pos"]
    """-log q(right output), in nats; nan at positions without one."""
    likely: Int[np.ndarray, "step row pos five"]
    probability: Float[np.ndarray, "step row pos five"]
    heads: tuple[str, ...]
    """`L1H1` ..., in the order of the maps."""
    n_layers: int


@torch.no_grad()
def run_over(chosen: Selection, rows: Sequence[int], length: int) -> Shown:
    """Attention and predictions of the models at the chosen steps, over the first `length` tokens of some rows."""
    attention, losses, likely, probability = [], [], [], []
    batch, graph = chosen.batch, None
    counted, targets = batch.counted[rows, :length].cpu(), batch.targets[rows, :length].cpu()
    for at in chosen.in_turn():
        graph = at.runner.graph
        recording = at.runner.record(at.batch.tokens[rows, :length])
        maps = []
        for layer in range(1, graph.n_layers + 1):
            maps.append(at.runner.pattern(recording, layer).cpu())
        log_q = recording.logits.cpu().double().log_softmax(-1)
        top = log_q.topk(min(LIKELY, log_q.shape[-1]))
        if batch.soft:
            loss = -(targets * log_q).sum(-1)
        else:
            loss = -log_q.gather(-1, torch.where(counted, targets, 0).unsqueeze(-1)).squeeze(-1)
        attention.append(triangle(torch.cat(maps, dim=1)).numpy())
        losses.append(loss.masked_fill(~counted, torch.nan).numpy())
        likely.append(top.indices.numpy())
        probability.append(top.values.exp().numpy())
    assert graph is not None
    shown = np.stack(attention), np.stack(losses), np.stack(likely), np.stack(probability)
    return Shown(*shown, tuple(graph.heads), graph.n_layers)


def triangle(maps: Float[Tensor, "*lead query key"]) -> Float[Tensor, "*lead entry"]:
    """The entries on and below the diagonal, row after row."""
    n = maps.shape[-1]
    rows, columns = torch.tril_indices(n, n)
    return maps[..., rows, columns]


def facts(batch: Batch, rows: Sequence[int], length: int, task: Task | None) -> list[dict[str, Any]]:
    """Tokens, targets, marked positions and boxes of each sequence that is shown.

    A target is -1 at positions that are not counted, or if targets are soft.
    """
    targets = torch.full_like(batch.tokens, -1) if batch.soft else torch.where(batch.counted, batch.targets, -1)
    result = []
    for row in rows:
        marked = row_marks(batch, row, length, task)
        result.append(
            {
                "row": row,
                "tokens": batch.tokens[row, :length].tolist(),
                "targets": targets[row, :length].tolist(),
                "in_context": np.flatnonzero(batch.group()[row, :length]).tolist(),
                "triggers": np.flatnonzero(marked["triggers"]).tolist(),
                "outputs": np.flatnonzero(marked["outputs"]).tolist(),
                "right": np.argwhere(marked["right"]).tolist(),
                "other": np.argwhere(marked["other"]).tolist(),
            }
        )
    return result


def renumbered(
    facts: Sequence[dict[str, Any]], likely: Int[np.ndarray, "step row pos five"]
) -> tuple[Int[np.ndarray, " token"], Int[np.ndarray, "step row pos five"]]:
    """Renumber the tokens on the page from 0, so that the other tokens of a large vocabulary need no names.

    Changes the tokens and targets of `facts` in place. Returns the tokens in the order of their new numbers, and the
    likely outputs as new numbers.
    """
    used = np.unique(np.concatenate([likely.ravel(), *(one[key] for one in facts for key in ("tokens", "targets"))]))
    used = used[used >= 0]
    for one in facts:
        for key in ("tokens", "targets"):
            one[key] = np.where(np.array(one[key]) < 0, -1, np.searchsorted(used, one[key])).tolist()
    return used, np.searchsorted(used, likely)
