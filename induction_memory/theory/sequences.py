r"""The data of Theorem 3 (App. B.3): K = 1, all distributions uniform, the last input the trigger's second occurrence.

A sequence z_1..z_T of the bigram task with one trigger q and its output o, both uniform on [N], conditioned on the
event that q occurs exactly twice, the second time at T; the label is y = o. Write t_q for the first occurrence and
t_o = t_q + 1. Counting probabilities (each free token costs a factor (N - 1) / N, each trigger 1 / N) gives

    t_q uniform on {1, .., T - 1},    t_q = T - 1 exactly when o = q,
    given q and t_q < T - 1: z_{t_o} = o uniform on [N] \ {q},    all tokens except at t_q, t_o, T i.i.d. likewise,

so that P(y = k) = 1/N but P(q = k | y = k) = 1/(T - 1), not 1/N. `sample` draws from this law. To check the law,
`enumerate_all` goes through every (q, o, z) of the task itself and keeps those in the event. Positions are counted from
1 in `first` (= t_q), as in the paper.
"""

from dataclasses import dataclass
from itertools import pairwise, product

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from induction_memory.errors import require


@dataclass(frozen=True)
class TriggerSequences:
    """Sequences that end in the second occurrence of their trigger."""

    tokens: Int64[Tensor, "batch pos"]
    "z_1 .. z_T, with z_T = q"
    labels: Int64[Tensor, " batch"]
    "y = z_{T+1} = o"
    first: Int64[Tensor, " batch"]
    "t_q, counted from 1"
    weights: Float[Tensor, " batch"]
    "probabilities that sum to one"

    @property
    def triggers(self) -> Int64[Tensor, " batch"]:
        """q of each sequence."""
        return self.tokens[:, -1]


def sample(N: int, T: int, batch: int, generator: torch.Generator) -> TriggerSequences:
    """`batch` independent sequences, each with weight 1 / batch."""
    require(N >= 2 and T >= 3, "N, T", "at least 2 tokens and 3 positions", (N, T))
    q = torch.randint(0, N, (batch,), generator=generator)
    first = torch.randint(1, T, (batch,), generator=generator)
    others = torch.randint(0, N - 1, (batch, T), generator=generator)
    tokens = others + (others >= q.unsqueeze(-1))  # uniform on [N] without q
    rows = torch.arange(batch)
    tokens[rows, first - 1] = q
    tokens[:, -1] = q
    labels = tokens[rows, first]  # position t_o = t_q + 1 counted from 1; q itself when t_q = T - 1
    return TriggerSequences(tokens, labels, first, torch.full((batch,), 1 / batch, dtype=torch.float64))


def enumerate_all(N: int, T: int) -> TriggerSequences:
    """Every sequence of the event with its exact probability, from the task's definition. N^(T+2) cases are tried."""
    require(N ** (T + 2) <= 300_000, "N, T", "at most 300000 cases N^(T+2)", N ** (T + 2))
    tokens, labels, first, weights = [], [], [], []
    for q, o in product(range(N), repeat=2):
        for z in product(range(N), repeat=T):
            if z[-1] != q or z.count(q) != 2:
                continue
            steps = [float(b == o) if a == q else 1 / N for a, b in pairwise(z)]
            probability = 1 / N**3  # q, o and z_1
            for step in steps:
                probability *= step
            if probability > 0:
                tokens.append(z)
                labels.append(o)
                first.append(z.index(q) + 1)
                weights.append(probability)
    mass = torch.tensor(weights, dtype=torch.float64)
    return TriggerSequences(torch.tensor(tokens), torch.tensor(labels), torch.tensor(first), mass / mass.sum())
