"""Score tables of the memories at every step that the page shows.

A row is an item of the side that recall fixes, a column one of its candidates:

    W_K1   p_t^T W_K1 p_s                       query position t, key position s; the first 64 positions
    W_K2   w_E(k)^T W_K2 Phi_1 w_E(k')          query k, key k'
    W_O2   w_U(j)^T W_O2 W_V2 w_E(k)            input k, output j
    W_F    w_U(j)^T W_F w_E(k)                  input k, output j: the logits of bigrams

With several heads W_K1 and W_O2 have one table per head. W_K2 has one table per pair of heads; for each layer-2 head,
the page shows the pair with the clearest signal at the last step (`clearest`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from induction_memory import probes
from induction_memory.model.associations import token_names
from induction_memory.source.sources import select
from induction_memory.task.protocol import offered
from induction_memory.views.page.pack import plain

WINDOW = "W_K1_first64"  # the positions of W_K1's table
SIGNALS = {"W_K1": "W_K1_sir", "W_K2": "W_K2_sir", "W_O2": "W_O2_sir"}


@dataclass(frozen=True, eq=False)
class Table:
    """One memory's scores over training."""

    memory: str
    head: str
    """Name as in the tables of `probes`: `L1H1`, or `L1H1>L2H1` for a pair; "" for W_F."""
    index: int
    """Its index among the heads (W_K1, W_O2) or the pairs of heads (W_K2), from 0."""
    scores: Float[np.ndarray, "step input output"]
    births: list[float | None] | None
    """The birth step of each row's item; None if it is not recalled at the end."""
    first: int
    """The index of the first row's position or token: 1 for W_K1, otherwise 0. Columns start at 0."""
    pairs: list[list[int]] | None
    """[row, column] of the pairs to store; None for W_F, where the page marks the likely bigrams."""


def tables(source: Any, steps: Sequence[int]) -> tuple[list[Table], dict[str, str]]:
    """The tables on the page, and the reasons for memories without one."""
    if source.task is None:
        return [], {"memories": "the task is not known, so neither are the pairs that they should store"}
    ranked, skipped = clearest(source)
    found: list[Table] = []
    names = token_names(source.task)[0]
    for memory, heads in ranked.items():
        births = probes.births(source, memory)
        scores, pairs = score_tables(source, memory, steps)
        first = int(memory == "W_K1")
        rows = range(2, scores.shape[-2] + 2) if first else names  # a position has a predecessor from the second on
        for h, head in heads:
            of_head = births.loc[births["head"] == head].set_index("association")["birth"]
            born = plain(of_head.reindex(list(rows)))
            found.append(Table(memory, head, h, scores[:, h].double().numpy(), born, first, pairs))
    if source.model_config.feed_forward == "linear" and offered(source.task, "bigram") is not None:
        scores, _ = score_tables(source, "W_F", steps)
        found.append(Table("W_F", "", 0, scores[:, 0].double().numpy(), None, 0, None))
    else:
        skipped["W_F"] = "needs a linear feed-forward, and a task with global bigrams"
    return found, skipped


def score_tables(
    source: Any, memory: str, steps: Sequence[int]
) -> tuple[Float[Tensor, "step head input output"], list[list[int]]]:
    """All scores of a memory at some steps, with one entry on the head axis per head or pair of heads.

    The second value has the pairs [row, column] to store.
    """
    stack = select(source, step=steps).stack
    a = stack.association(WINDOW if memory == "W_K1" else memory)
    stored = a.ideal != 0 if a.asked is None else a.asked
    rows, stored = (a.scores, stored) if a.given == "output" else (a.scores.mT, stored.mT)
    scores = rows.expand(stack.n_steps, *rows.shape[1:]).reshape(stack.n_steps, -1, *rows.shape[-2:])
    return scores, stored.nonzero().tolist()


def clearest(source: Any) -> tuple[dict[str, list[tuple[int, str]]], dict[str, str]]:
    """The heads of each memory as (index, name), clearest signal first; and the reasons for memories without any.

    The signal is the signal-to-interference ratio of the ideal pairs at the last step, as in surgery's choice of
    `through`. Recall would mislead if several heads share the work. For W_K2, each layer-2 head is paired with the
    layer-1 head of the clearest signal.
    """
    table = probes.table(source, list(SIGNALS.values()), step="last")
    ranked: dict[str, list[tuple[int, str]]] = {}
    skipped: dict[str, str] = {}
    for memory, signal in SIGNALS.items():
        own = table.loc[table["probe"] == signal]
        if own.empty:
            skipped[memory] = table.attrs["skipped"][signal]
            continue
        names, values = list(own["head"]), np.nan_to_num(own["value"].to_numpy(), nan=-np.inf)
        chosen = np.arange(len(names))
        if memory == "W_K2" and len(names) > 1:
            n_heads = source.model_config.n_heads
            chosen = values.reshape(-1, n_heads).argmax(0) * n_heads + np.arange(n_heads)
        order = chosen[np.argsort(-values[chosen], kind="stable")]
        ranked[memory] = [(int(h), names[h]) for h in order]
    return ranked, skipped


def facts(table: Table, step: float, name: str) -> dict[str, Any]:
    """The page's metadata of a table."""
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
        "pairs": table.pairs,
        "of_outputs": table.memory in ("W_O2", "W_F"),
        "quantum": step,
    }
