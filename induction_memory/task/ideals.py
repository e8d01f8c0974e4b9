"""What the matrices of an induction head would store, as tasks say it (`Task.associations`).

    W_K1   each position t stores the one before it, t-1
    W_K2   each token, remapped by layer 1, stores itself
    W_O2   each value stores its own token as output
    W_F    each token i stores its successors j with strength log(pi_b(j|i) + smoothing), centred over j

log pi_b is not finite where a bigram never occurs, hence the smoothing. The mean over j only shifts the logits.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from induction_memory.task.protocol import Ideal

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
    """The three attention memories. `matched` are the tokens that W_K2 stores, all when not given.

    Recall of W_K2 asks for these, or for every token with `ask_all`. `before` says which positions W_K1 stores, row =
    query, if not the one before.

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
    table: Float[np.ndarray, "token next"],
    left_out: Int[np.ndarray, " k"] | None = None,
    smoothing: float = SMOOTHING,
) -> Float[np.ndarray, "token next"]:
    """Row i: log(table_i + smoothing), centred; zero for `left_out`, tokens whose successor depends on the context."""
    logits = np.log(table + smoothing)
    logits -= logits.mean(-1, keepdims=True)
    if left_out is not None:
        logits[left_out] = 0
    return logits


def feed_forward(table: Float[np.ndarray, "token next"], left_out: Int[np.ndarray, " k"] | None = None) -> Ideal:
    """The memory of a linear feed-forward that predicts the successors of each token."""
    return Ideal("token", "output", bigram_logits(table, left_out).T, "each token stores its likely successors")
