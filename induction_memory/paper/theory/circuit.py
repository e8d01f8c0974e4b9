r"""The model of Theorem 3, its data and its gradient steps (Appendix B.3), in plain torch and float64.

**The simplified circuit** (`logits`). Layer 1 attends only by position, and layer 2 is read only at the last position
(no residual to the output):

    A[t, s]  = softmax over s <= t of p_s^T W_K1 p_t
    x_{t,0}  = w_E(z_t) [+ p_t]                               queries and values of layer 2
    x_{t,1}  = sum_{s <= t} A[t, s] Phi_1 (w_E(z_s) [+ p_s])    keys of layer 2
    xi       = W_U W_O2 W_V2 sum_t x_{t,0} softmax over t of x_{t,1}^T W_K2 x_{T,0}

The paper has the bracketed positions in its step on W_K2 and drops them in its step on W_K1. `positions` says where
they are added ("everywhere" includes the query, which then always carries p_T). In the step on W_O2 the values are
x_{t,0} + x_{t,1} (`both_streams`). As in the appendix, rows of W_K belong to keys.

Everything is linear in embeddings, so a batch needs only the small tables of scores between them.

**Without simplifications** (`residual_logits`): one residual stream, the model of Section 4.2 without W_F.

    x_t    = w_E(z_t) + p_t
    x_t'   = x_t + Phi_1 sum_{s <= t} softmax over s of (x_s^T W_K1 x_t) x_s
    xi     = W_U (x_T' + W_O2 W_V2 sum_t softmax over t of (x_t'^T W_K2 x_T') x_t')

Every residual stream is a combination of the columns of E = [w_E, p] and of Phi_1 E. So a sequence is represented by
its coefficients on these columns, and only the last position is computed in d dimensions.

**The data**: sequences z_1..z_T of the bigram task with K = 1 and uniform distributions: one trigger q and its output
o, both uniform on [N], conditioned on the event that q occurs exactly twice, the second time at T. The label is y = o.
Write t_q for the first occurrence and t_o = t_q + 1. Counting probabilities (each free token costs a factor (N - 1) /
N, each trigger 1 / N) gives

    t_q uniform on {1, .., T - 1},    t_q = T - 1 exactly when o = q,
    given q and t_q < T - 1: z_{t_o} = o uniform on [N] \ {q},    all tokens except at t_q, t_o, T i.i.d. likewise,

so that P(y = k) = 1/N but P(q = k | y = k) = 1/(T - 1), not 1/N. `sample` draws from this law. To check the law,
`enumerate_all` goes through every (q, o, z) of the task itself and keeps those in the event. Positions are counted from
1 in `first` (= t_q), as in the paper.

**The steps** (`take_steps`): one step of gradient descent from zero for each memory in turn, on fresh sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import Association, causal, matching
from induction_memory.memory.gradients import cross_entropy
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.memory.recall import recall


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
            probability = prod(steps, start=1 / N**3)  # q, o and z_1
            if probability > 0:
                tokens.append(z)
                labels.append(o)
                first.append(z.index(q) + 1)
                weights.append(probability)
    mass = torch.tensor(weights, dtype=torch.float64)
    return TriggerSequences(torch.tensor(tokens), torch.tensor(labels), torch.tensor(first), mass / mass.sum())


Matrix = Literal["W_O2", "W_K2", "W_K1"]
Positions = Literal["none", "keys and values", "everywhere"]


@dataclass(frozen=True)
class Embeddings:
    """The frozen embeddings and maps."""

    w_E: Float[Tensor, "vocab d_model"]
    p: Float[Tensor, "pos d_model"]
    w_U: Float[Tensor, "vocab d_model"]
    Phi_1: Float[Tensor, "d_model d_model"]
    W_V2: Float[Tensor, "d_model d_model"]

    @property
    def shape(self) -> tuple[int, int, int]:
        """N, T, d."""
        return len(self.w_E), len(self.p), self.w_E.shape[1]


def gaussian(N: int, T: int, d: int, generator: torch.Generator) -> Embeddings:
    """Random embeddings and remappings with entries N(0, 1/d)."""
    w_E, p, w_U = (gaussian_embeddings(n, d, generator) for n in (N, T, N))
    return Embeddings(w_E, p, w_U, random_remapping(d, generator), random_remapping(d, generator))


def orthonormal(N: int, T: int) -> Embeddings:
    """The limit of infinite dimension: all embeddings and their remapped versions exactly orthonormal."""
    d = 3 * N + 2 * T
    basis = torch.eye(d, dtype=torch.float64)
    shift = torch.zeros(d, d, dtype=torch.float64)
    shift[N + T : 2 * (N + T), : N + T] = torch.eye(N + T, dtype=torch.float64)  # Phi_1: first block to second
    return Embeddings(basis[:N], basis[N : N + T], basis[2 * (N + T) :], shift, basis)


@dataclass(frozen=True)
class Circuit:
    """The three memories that learn."""

    W_O2: Float[Tensor, "d_model d_model"]
    W_K2: Float[Tensor, "d_model d_model"]
    W_K1: Float[Tensor, "d_model d_model"]


Forward = Callable[[Embeddings, Circuit, Tensor], Tensor]
"""Embeddings, memories and tokens [batch pos] to logits [batch vocab]."""


def zeros(d: int) -> Circuit:
    """The start of the paper's analysis."""
    return Circuit(*(torch.zeros(d, d, dtype=torch.float64) for _ in range(3)))


def output_scores(e: Embeddings, c: Circuit) -> Float[Tensor, "vocab vocab"]:
    """w_U(k)^T W_O2 W_V2 w_E(j), one row per k."""
    return e.w_U @ c.W_O2 @ e.W_V2 @ e.w_E.mT


def match_scores(e: Embeddings, c: Circuit) -> Float[Tensor, "vocab vocab"]:
    """(Phi_1 w_E(i))^T W_K2 w_E(j), one row per i (key), one column per j (query)."""
    return e.w_E @ e.Phi_1.mT @ c.W_K2 @ e.w_E.mT


def position_scores(e: Embeddings, c: Circuit) -> Float[Tensor, "key query"]:
    """p_s^T W_K1 p_t, one row per s (key), one column per t (query)."""
    return e.p @ c.W_K1 @ e.p.mT


def first_attention(e: Embeddings, c: Circuit) -> Float[Tensor, "query key"]:
    """A[t, s], equal for all sequences, because it depends only on positions."""
    causal = torch.ones(len(e.p), len(e.p), dtype=torch.bool).tril()
    return position_scores(e, c).mT.masked_fill(~causal, -torch.inf).softmax(-1)


def second_attention(
    e: Embeddings, c: Circuit, tokens: Int64[Tensor, "batch pos"], positions: Positions = "none"
) -> Float[Tensor, "batch pos"]:
    """Attention of the last position over all positions."""
    queries = e.w_E + e.p[-1] if positions == "everywhere" else e.w_E
    wanted = queries @ c.W_K2.mT @ e.Phi_1
    match = (wanted @ e.w_E.mT)[tokens[:, -1:], tokens]
    if positions != "none":
        match = match + (wanted @ e.p.mT)[tokens[:, -1]]
    return (match @ first_attention(e, c).mT).softmax(-1)


def logits(
    e: Embeddings,
    c: Circuit,
    tokens: Int64[Tensor, "batch pos"],
    positions: Positions = "none",
    both_streams: bool = False,
) -> Float[Tensor, "batch vocab"]:
    """xi of the module's docstring for each sequence."""
    attention = second_attention(e, c, tokens, positions)
    out = e.w_U @ c.W_O2 @ e.W_V2
    xi = _by_token(attention, tokens, e) @ (out @ e.w_E.mT).mT
    if positions != "none":
        xi = xi + attention @ (out @ e.p.mT).mT
    if both_streams:
        through = attention @ first_attention(e, c)
        xi = xi + _by_token(through, tokens, e) @ (out @ e.Phi_1 @ e.w_E.mT).mT
        if positions != "none":
            xi = xi + through @ (out @ e.Phi_1 @ e.p.mT).mT
    return xi


def gradient(
    e: Embeddings, c: Circuit, matrix: Matrix, data: TriggerSequences, forward: Forward = logits
) -> Float[Tensor, "d_model d_model"]:
    """The gradient of the expected cross-entropy with respect to one matrix, by autograd through the whole circuit."""
    W = getattr(c, matrix).clone().requires_grad_()
    xi = forward(e, replace(c, **{matrix: W}), data.tokens)
    return torch.autograd.grad(cross_entropy(xi, data.labels, data.weights), W)[0]


def sampled_gradients(
    e: Embeddings,
    c: Circuit,
    matrix: Matrix,
    generator: torch.Generator,
    forward: Forward = logits,
    chunks: int = 24,
    chunk: int = 4096,
) -> Float[Tensor, "chunk d_model d_model"]:
    """Independent estimates of the population gradient; their spread gives its error bars."""
    N, T, _ = e.shape
    return torch.stack([gradient(e, c, matrix, sample(N, T, chunk, generator), forward) for _ in range(chunks)])


def correct(e: Embeddings, c: Circuit, data: TriggerSequences, forward: Forward = logits) -> Bool[Tensor, " batch"]:
    """Whether the largest logit of each sequence is its label's; ties count as misses."""
    xi = forward(e, c, data.tokens)
    best = xi.gather(-1, data.labels.unsqueeze(-1))
    return (xi >= best).sum(-1) == 1


def _by_token(
    attention: Float[Tensor, "batch pos"], tokens: Int64[Tensor, "batch pos"], e: Embeddings
) -> Float[Tensor, "batch vocab"]:
    """The attention that each token of the vocabulary receives, summed over its positions."""
    empty = torch.zeros(len(tokens), len(e.w_E), dtype=attention.dtype)
    return empty.scatter_add(-1, tokens, attention)


def residual_logits(e: Embeddings, c: Circuit, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch vocab"]:
    """xi at the last position of each sequence."""
    N, T, _ = e.shape
    E = torch.cat([e.w_E, e.p])
    remapped = E @ e.Phi_1.mT
    present = torch.stack([tokens, torch.arange(N, N + T).expand_as(tokens)])  # the two atoms of each x_t
    first = _first_attention(E @ c.W_K1 @ E.mT, tokens, N)
    last_mixture = _spread(first[:, -1], present, N + T)
    x_T = e.w_E[tokens[:, -1]] + e.p[-1] + last_mixture @ remapped
    wanted = x_T @ c.W_K2.mT
    own = _gather(wanted @ E.mT, present)
    through = (first @ _gather(wanted @ remapped.mT, present).unsqueeze(-1)).squeeze(-1)
    second = (own + through).softmax(-1)
    passed_on = (second.unsqueeze(-2) @ first).squeeze(-2)
    attended = _spread(second, present, N + T) @ E + _spread(passed_on, present, N + T) @ remapped
    return (x_T + attended @ e.W_V2.mT @ c.W_O2.mT) @ e.w_U.mT


def _first_attention(
    table: Float[Tensor, "atom atom"], tokens: Int64[Tensor, "batch pos"], N: int
) -> Float[Tensor, "batch query key"]:
    """Layer 1's attention from the scores of every pair of atoms, rows keys and columns queries."""
    T = tokens.shape[1]
    key, query = tokens.unsqueeze(1), tokens.unsqueeze(2)
    positions = torch.arange(N, N + T)
    scores = table[key, query] + table[positions, query] + table[key, positions.unsqueeze(-1)]
    scores = scores + table[N:, N:].mT
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    return scores.masked_fill(~causal, -torch.inf).softmax(-1)


def _gather(table: Float[Tensor, "batch atom"], present: Int64[Tensor, "two batch pos"]) -> Float[Tensor, "batch pos"]:
    """The sum over the two atoms of each position of a table's entries."""
    return table.gather(-1, present[0]) + table.gather(-1, present[1])


def _spread(
    weights: Float[Tensor, "batch pos"], present: Int64[Tensor, "two batch pos"], atoms: int
) -> Float[Tensor, "batch atom"]:
    """Weights on positions as weights on atoms."""
    empty = torch.zeros(len(weights), atoms, dtype=weights.dtype)
    return empty.scatter_add(-1, present[0], weights).scatter_add(-1, present[1], weights)


TOP_DOWN: tuple[Matrix, ...] = ("W_O2", "W_K2", "W_K1")

Architecture = Callable[[Matrix], Forward]
"""The forward for each matrix's gradient."""


def simplified(matrix: Matrix, positions: Positions = "none") -> Forward:
    """The paper's split streams: both go through W_O2 while W_O2 learns, afterwards only x_{t,0}."""
    return partial(logits, positions=positions, both_streams=matrix == "W_O2")


def superposed(matrix: Matrix) -> Forward:
    """One residual stream for everything, as in the trained models."""
    del matrix  # all three learn through the same forward
    return residual_logits


def output_step(e: Embeddings, eta: float, c_0: float, c_1: float) -> Float[Tensor, "d_model d_model"]:
    """W_O2 = eta/(N T) sum_k w_U(k) (W_V2 (c_0 + c_1 Phi_1) (w_E(k) - w_E_bar))^T; the paper has 1 and tau."""
    N, T, _ = e.shape
    centred = e.w_E - e.w_E.mean(0)
    return eta / (N * T) * e.w_U.mT @ ((c_0 * centred + c_1 * centred @ e.Phi_1.mT) @ e.W_V2.mT)


def take_steps(
    e: Embeddings,
    eta: float,
    generator: torch.Generator,
    order: Sequence[Matrix] = TOP_DOWN,
    architecture: Architecture = simplified,
    start: Circuit | None = None,
    chunks: int = 2,
    chunk: int = 16384,
) -> list[Circuit]:
    """The circuit after each step; every step sees fresh sequences and the same step size."""
    circuits = [zeros(e.shape[-1]) if start is None else start]
    for matrix in order:
        c = circuits[-1]
        step = sampled_gradients(e, c, matrix, generator, architecture(matrix), chunks, chunk).mean(0)
        circuits.append(replace(c, **{matrix: getattr(c, matrix) - eta * step}))
    return circuits[1:]


def accuracy(
    e: Embeddings, c: Circuit, generator: torch.Generator, forward: Forward = logits, sequences: int = 8192
) -> float:
    """In-context accuracy on fresh sequences."""
    N, T, _ = e.shape
    return correct(e, c, sample(N, T, sequences, generator), forward).double().mean().item()


def recalls(e: Embeddings, c: Circuit) -> dict[Matrix, float]:
    """Recall of each memory's pairs; for W_K1 among the positions that the causal mask allows."""
    T = len(e.p)
    memories: dict[Matrix, Association] = {
        "W_O2": matching(c.W_O2, e.w_E @ e.W_V2.mT, e.w_U),
        "W_K2": matching(c.W_K2, e.w_E, e.w_E @ e.Phi_1.mT),
        "W_K1": matching(c.W_K1, e.p[1:], e.p, torch.arange(T - 1), allowed=causal(T)[1:].mT),
    }
    return {name: recall(memory).item() for name, memory in memories.items()}


def contrast(table: Float[Tensor, "*chunk i i"]) -> Float[Tensor, "*chunk"]:
    """Mean diagonal entry minus mean off-diagonal entry."""
    n = table.shape[-1]
    diagonal = table.diagonal(dim1=-2, dim2=-1).sum(-1)
    return diagonal / n - (table.sum((-2, -1)) - diagonal) / (n * (n - 1))


def mean_and_error(values: Float[Tensor, " chunk"]) -> tuple[float, float]:
    """Mean over independent chunks and its standard error."""
    return values.mean().item(), (values.std() / len(values) ** 0.5).item()
