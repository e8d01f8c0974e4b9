"""Attention and predictions over the sequences that the page shows, at every step.

Attention is kept below the diagonal only: row t of a map holds its keys 0..t, so a map of n tokens is n (n + 1) / 2
numbers. Of each prediction the page has -log q of the right next token and the five most likely tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.task.sampler import Batch
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.views.attention import marks

LIKELY = 5  # tokens listed of each prediction


@dataclass(frozen=True, eq=False)
class Shown:
    """What the models of some steps do on some sequences."""

    attention: Float[np.ndarray, "step row head entry"]
    """The lower triangle of each map, row after row."""
    loss: Float[np.ndarray, "step row pos"]
    """-log q(next token), in nats."""
    likely: Int[np.ndarray, "step row pos five"]
    probability: Float[np.ndarray, "step row pos five"]


def choose(batch: Batch, n: int, length: int) -> list[int]:
    """The rows in which most different triggers come again within `length` tokens; then those with most queries."""
    again = torch.where(batch.in_context, batch.tokens, -1)[:, :length]
    score = [(len(row[row >= 0].unique()), int((row >= 0).sum())) for row in again]
    return sorted(range(len(batch)), key=lambda i: score[i], reverse=True)[:n]


@torch.no_grad()
def run_over(
    run: Trajectory, steps: Sequence[int], tokens: Int[Tensor, "row pos"], targets: Int[Tensor, "row pos"]
) -> Shown:
    """Attention and predictions of the models at these steps."""
    wanted, parts = set(steps), []
    for step, model in run.models():
        if step not in wanted:
            continue
        logits, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
        assert isinstance(logits, Tensor)
        maps = torch.cat([cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(model.cfg.n_layers)], dim=1)
        parts.append((triangle(maps), *_prediction(logits, targets)))
    return Shown(*(torch.stack(part).numpy() for part in zip(*parts, strict=True)))


def triangle(maps: Float[Tensor, "*lead query key"]) -> Float[Tensor, "*lead entry"]:
    """The entries on and below the diagonal, row after row."""
    n = maps.shape[-1]
    rows, columns = torch.tril_indices(n, n)
    return maps[..., rows, columns]


def _prediction(logits: Float[Tensor, "row pos vocab"], targets: Int[Tensor, "row pos"]) -> tuple[Tensor, ...]:
    log_q = logits.double().log_softmax(-1)
    top = log_q.topk(min(LIKELY, log_q.shape[-1]))
    return -log_q.gather(-1, targets.unsqueeze(-1)).squeeze(-1), top.indices, top.values.exp()


def facts(batch: Batch, rows: Sequence[int], length: int) -> list[dict[str, Any]]:
    """Tokens, targets, triggers and boxes of each sequence that is shown."""
    result = []
    for row in rows:
        tokens = batch.tokens[row, :length]
        pairs = dict(zip(batch.triggers[row].tolist(), batch.outputs[row].tolist(), strict=True))
        marked = marks(tokens, pairs)
        result.append(
            {
                "row": row,
                "tokens": tokens.tolist(),
                "targets": batch.targets[row, :length].tolist(),
                "in_context": np.flatnonzero(batch.in_context[row, :length]).tolist(),
                "triggers": np.flatnonzero(marked["triggers"]).tolist(),
                "outputs": np.flatnonzero(marked["outputs"]).tolist(),
                "right": np.argwhere(marked["right"]).tolist(),
                "other": np.argwhere(marked["other"]).tolist(),
            }
        )
    return result
