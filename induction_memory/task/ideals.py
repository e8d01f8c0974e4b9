"""A task's perfect model: what its matrices store, and which keys its heads attend to.

    W_K1   each position t stores the one before it, t-1
    W_K2   each token, remapped by layer 1, stores itself
    W_O2   each value stores its own token as output
    W_F    each token i stores its successors j with strength log(pi_b(j|i) + smoothing), centred over j

log pi_b is not finite where a bigram never occurs, hence the smoothing. The mean over j only shifts the logits.

The keys that a head in some role attends to are masks over (query, key).
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Ideal, NotOfferedError, Task, ask

SMOOTHING = 0.01  # added to pi_b before the logarithm


def induction_head(
    length: int,
    n_inputs: int,
    n_outputs: int | None = None,
    *,
    matched: Bool[np.ndarray, " token"] | None = None,
    ask_all: bool = False,
    before: Float[np.ndarray, "pos pos"] | None = None,
    about: str = "each position stores the one before it",
) -> dict[str, Ideal]:
    """The three attention memories. `matched` are the tokens that W_K2 stores, by default all.

    Recall of W_K2 counts these, or every token with `ask_all`. `before` says which positions W_K1 stores (row = query),
    by default the one before.

    >>> sorted(induction_head(4, 3))
    ['W_K1', 'W_K2', 'W_O2']
    """
    every = np.eye(n_inputs)
    stored = every if matched is None else every * matched
    asked = every.astype(bool) if ask_all else None
    outputs = n_inputs if n_outputs is None else n_outputs
    return {
        "W_K1": Ideal("position", "position", np.eye(length, k=-1) if before is None else before, about),
        "W_K2": Ideal("token", "token", stored, "each token, remapped by layer 1, stores itself", asked),
        "W_O2": Ideal("token", "output", np.eye(outputs, n_inputs), "each value stores its own token as output"),
    }


def bigram_logits(
    table: Float[np.ndarray, "token next"], left_out: Int[np.ndarray, " k"] | None = None, smoothing: float = SMOOTHING
) -> Float[np.ndarray, "token next"]:
    """Row i: log(table_i + smoothing), centred; zero for the tokens in `left_out`, whose successor depends on the
    context."""
    logits = np.log(table + smoothing)
    logits -= logits.mean(-1, keepdims=True)
    if left_out is not None:
        logits[left_out] = 0
    return logits


def feed_forward(table: Float[np.ndarray, "token next"], left_out: Int[np.ndarray, " k"] | None = None) -> Ideal:
    """The memory of a linear feed-forward that predicts the successors of each token."""
    return Ideal("token", "output", bigram_logits(table, left_out).T, "each token stores its likely successors")


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
    """The sources that a task names, on the batch's device; the task itself computes on the CPU."""
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
    """The mask of one key per query; none where the key is negative."""
    return key[:, :, None] == torch.arange(pos, device=key.device)


def _back(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "query key"]:
    """How many positions the key is before the query."""
    here = torch.arange(tokens.shape[1], device=tokens.device)
    return here[:, None] - here[None, :]
