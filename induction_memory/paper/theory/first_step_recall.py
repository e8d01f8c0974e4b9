"""One-step recall of W_O2 on the real task (Figure 9, Appendix E), without a transformer.

    R_1 = 1/N sum_k 1{ k = argmax_k' (W_V2 w_E(k'))^T (mu_k - mu) },    x = 1/t sum_{s <= t} W_V2 w_E(z_s),

with mu_k = E[x | y = k] and mu = E[x] over the positions t at which z_t is a trigger after its first occurrence and
y = z_{t+1}. x is linear in the frequencies of the tokens up to t, so the data enter only through their class means f_k,
an N x N table. Then mu_k = V^T f_k, where the rows of V are W_V2 w_E(k'), and each dimension costs one product.
"""

from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from induction_memory.memory.association import matching
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.memory.recall import recall
from induction_memory.paper.theory.checks import Result
from induction_memory.paper.verdicts import at_least, at_most
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import BigramBatch, sample

BATCH = 32
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
DIMENSIONS = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Frequencies:
    """Sums over in-context positions, from which every class mean follows; they add up over batches."""

    by_label: Float[Tensor, "vocab vocab"]
    "row k: sum of the token frequencies up to t, over positions whose label is k"
    positions: Int64[Tensor, " vocab"]
    "number of positions with each label"

    def __add__(self, other: "Frequencies") -> "Frequencies":
        return Frequencies(self.by_label + other.by_label, self.positions + other.positions)

    @property
    def contrasts(self) -> Float[Tensor, "vocab vocab"]:
        """Row k: mean frequencies given y = k minus overall mean; nan for labels never seen."""
        means = self.by_label / self.positions.unsqueeze(-1)
        return means - self.by_label.sum(0) / self.positions.sum()


def frequencies(batch: BigramBatch, vocab_size: int) -> Frequencies:
    """The statistics of one batch."""
    length = batch.tokens.shape[1]
    counts = torch.nn.functional.one_hot(batch.tokens, vocab_size).cumsum(1)
    running = counts.double() / torch.arange(1, length + 1, dtype=torch.float64).unsqueeze(-1)
    labels = batch.targets[batch.in_context]
    empty = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    by_label = empty.index_add(0, labels, running[batch.in_context])
    return Frequencies(by_label, torch.bincount(labels, minlength=vocab_size))


def one_step_recall(contrasts: Float[Tensor, "vocab vocab"], V: Float[Tensor, "vocab d_model"]) -> float:
    """R_1 for the remapped embeddings V = w_E W_V2^T; a label that was never seen is a miss, as is a tie."""
    scored = matching(torch.eye(V.shape[-1]).to(V), contrasts @ V, V)  # (W_V2 w_E(k'))^T (mu_k - mu)
    return recall(scored).item()


def repeated(repeats: int = 4) -> Float[np.ndarray, "repeat dimension batches"]:
    r"""$R_1$ for several draws of data and embeddings; the last dimension is infinite (orthonormal embeddings)."""
    task, draws = BigramTask(), []
    for repeat in range(repeats):
        generator = torch.Generator().manual_seed(repeat)
        contrasts = [stats.contrasts for stats in _accumulate(task, np.random.default_rng(repeat))]
        embedded = [_remapped(task.vocab_size, d, generator) for d in (*DIMENSIONS, None)]
        draws.append([[one_step_recall(table, V) for table in contrasts] for V in embedded])
    return np.array(draws)


def one_step(repeats: int = 4) -> Result:
    r"""Figure 9 asks how much of $W_O^2$ one gradient step stores. $R_1$ is the share of tokens whose embedding $W_V^2
    w_E(k)$ is the one that $\mu_k - \mu$ matches best. The batches have 32 sequences of 256 tokens of tiny Shakespeare
    with $K = 5$ random triggers and uniform outputs. $R_1$ is measured against the dimension and the number of batches,
    as a mean over four draws of data and embeddings. With exactly orthonormal embeddings ($d = \infty$) only the data
    limits it."""
    grid = repeated(repeats).mean(0)
    places = product((*DIMENSIONS, np.inf), BATCHES)
    reached = {place: float(value) for place, value in zip(places, grid.flatten(), strict=True)}
    fall = max(-np.diff(grid, axis=0).min(), -np.diff(grid, axis=1).min(), 0.0)
    rows = (
        at_least("R_1 at d = 1024 after 8 batches (65,536 tokens)", 0.9, reached[1024, 8]),
        at_least("R_1 at d = 128 after 128 batches", 0.8, reached[128, 128]),
        at_most("R_1 at d = 16 after 128 batches: too few dimensions", 0.7, reached[16, 128]),
        at_most("R_1 at d = 1024 after one batch: too little data", 0.7, reached[1024, 1]),
        at_most("largest fall of R_1 from one dimension or number of batches to the next", 0.1, float(fall)),
    )
    table = pd.DataFrame([{"d": d, "batches": n, "recall": value} for (d, n), value in reached.items()])
    return Result(rows, {"recall": table})


def _accumulate(task: BigramTask, rng: np.random.Generator) -> list[Frequencies]:
    """The statistics of the first 1, 2, 4, .. batches of one stream."""
    batches = (frequencies(sample(task, BATCH, rng), task.vocab_size) for _ in range(BATCHES[-1]))
    totals = accumulate(batches)
    return [total for n, total in enumerate(totals, 1) if n in BATCHES]


def _remapped(n: int, d: int | None, generator: torch.Generator) -> Float[Tensor, "vocab d_model"]:
    """W_V2 w_E(k) for random embeddings and a random W_V2, or an orthonormal set."""
    if d is None:
        return torch.eye(n, dtype=torch.float64)
    return gaussian_embeddings(n, d, generator) @ random_remapping(d, generator).mT
