"""Score tables of the memories at every step that the page shows.

A row is an input, a column a candidate output, as in `probes.score_matrix`:

    W_K1   p_t^T W_K1 p_s                       query position t, key position s; the first 64 positions
    W_K2   w_E(k)^T W_K2 Phi_1 w_E(k')          query k, key k'
    W_O2   w_U(j)^T W_O2 W_V2 w_E(k)            input k, output j
    W_F    w_U(j)^T W_F w_E(k)                  input k, output j: the logits of bigrams

With several heads W_K1 and W_O2 have one table per head. W_K2 has one per pair of heads; shown is, for each head of
layer 2, the pair with the highest recall at the last step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from induction_memory import probes
from induction_memory.subject import subject
from induction_memory.trajectory.trajectory import Trajectory

WINDOW = 64  # positions of W_K1's table
MEMORIES = ("W_K1", "W_K2", "W_O2")


@dataclass(frozen=True, eq=False)
class Table:
    """One memory's scores over training."""

    memory: str
    head: str
    """As in the tables of `probes`: `L1H1`, or `L1H1>L2H1` for a pair; "" for W_F."""
    index: int
    """Its place among the heads (W_K1, W_O2) or among the pairs of heads (W_K2), counted from 0."""
    scores: Float[np.ndarray, "step input output"]
    births: list[float | None] | None
    """The step from which each input stays recalled; None if it is not recalled at the end."""
    first: int
    """What the first row stands for: position 1 for W_K1, token 0 otherwise. Columns start at 0."""
    recall: float
    """At the last step; nan if recall is not defined (W_F)."""


def tables(run: Trajectory, steps: Sequence[int]) -> tuple[list[Table], dict[str, str]]:
    """The tables that the page shows, and the reason for each memory that has none."""
    recalls = probes.table(run, MEMORIES)
    skipped: dict[str, str] = dict(recalls.attrs["skipped"])
    found: list[Table] = []
    for memory in MEMORIES:
        if memory in skipped:
            continue
        last = recalls.loc[(recalls["probe"] == memory) & (recalls["step"] == recalls["step"].max())]
        heads, values = list(last["head"]), last["value"].to_numpy()
        born = probes.births(run, memory)
        scores = score_tables(run, memory, steps)
        for h in _chosen(memory, values, run.model_config.n_heads):
            birth = born.loc[born["head"] == heads[h], "birth"].to_numpy()[: scores.shape[-2]]
            listed = [None if np.isnan(b) else float(b) for b in birth]
            table = scores[:, h].double().numpy()
            found.append(Table(memory, heads[h], h, table, listed, int(memory == "W_K1"), float(values[h])))
    if run.model_config.feed_forward == "linear":
        scores = score_tables(run, "W_F", steps)[:, 0].double().numpy()
        found.append(Table("W_F", "", 0, scores, None, 0, float("nan")))
    else:
        skipped["W_F"] = "needs a linear feed-forward"
    return found, skipped


def score_tables(run: Trajectory, memory: str, steps: Sequence[int]) -> Float[Tensor, "step head input output"]:
    """All scores of a memory at some steps, with one entry on the head axis per head or pair of heads."""
    stack = subject(run, step=list(steps)).stack
    a = stack.association(f"W_K1[0:{WINDOW}]" if memory == "W_K1" else memory)
    rows = a.scores if a.given == "output" else a.scores.mT
    return rows.expand(stack.n_steps, *rows.shape[1:]).reshape(stack.n_steps, -1, *rows.shape[-2:])


def _chosen(memory: str, values: Float[np.ndarray, " head"], n_heads: int) -> list[int]:
    """Indices of the tables that are shown, the highest recall first."""
    if memory != "W_K2" or n_heads == 1:
        return [int(h) for h in np.argsort(-values, kind="stable")]
    best = values.reshape(n_heads, n_heads).argmax(0).tolist()
    pairs = [partner * n_heads + head for head, partner in enumerate(best)]
    return sorted(pairs, key=lambda pair: -values[pair])


def facts(table: Table, step: float, name: str) -> dict[str, Any]:
    """What the page needs to know of a table beside its numbers."""
    rows, columns = table.scores.shape[1:]
    return {
        "memory": table.memory,
        "index": table.index,
        "head": table.head,
        "array": name,
        "rows": rows,
        "columns": columns,
        "first": table.first,
        "positions": table.memory == "W_K1",
        "births": table.births,
        "quantum": step,
    }
