"""The simplified two-layer circuit of Appendix B.3, in plain torch and float64.

Layer 1 attends only by position, and layer 2 is read only at the last position (no residual to the output):

    A[t, s]  = softmax over s <= t of p_s^T W_K1 p_t
    x_{t,0}  = w_E(z_t) [+ p_t]                               queries and values of layer 2
    x_{t,1}  = sum_{s <= t} A[t, s] Phi_1 (w_E(z_s) [+ p_s])    keys of layer 2
    xi       = W_U W_O2 W_V2 sum_t x_{t,0} softmax over t of x_{t,1}^T W_K2 x_{T,0}

The paper has the bracketed positions in its step on W_K2 and drops them in its step on W_K1. `positions` says where
they are added ("everywhere" includes the query, which then always carries p_T). In the step on W_O2 the values are
x_{t,0} + x_{t,1} (`both_streams`). As in the appendix, rows of W_K belong to keys.

Since everything is linear in embeddings, a batch only needs the small score tables between them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from induction_memory.memory.losses import cross_entropy
from induction_memory.memory.random_embeddings import gaussian_embeddings, random_remapping
from induction_memory.theory.sequences import TriggerSequences, sample

Matrix = Literal["W_O2", "W_K2", "W_K1"]
Positions = Literal["none", "keys and values", "everywhere"]


@dataclass(frozen=True)
class Embeddings:
    """Everything that is frozen."""

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
    """A[t, s]: the same for every sequence, as only positions take part."""
    causal = torch.ones(len(e.p), len(e.p), dtype=torch.bool).tril()
    return position_scores(e, c).mT.masked_fill(~causal, -torch.inf).softmax(-1)


def second_attention(
    e: Embeddings, c: Circuit, tokens: Int64[Tensor, "batch pos"], positions: Positions = "none"
) -> Float[Tensor, "batch pos"]:
    """Attention of the last position over all."""
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
    """The gradient of the expected cross-entropy in one matrix, by autograd through the whole circuit."""
    W = getattr(c, matrix).clone().requires_grad_()
    xi = forward(e, replace(c, **{matrix: W}), data.tokens)
    return torch.autograd.grad(cross_entropy(xi, data.labels, data.weights), W)[0]


def streamed_gradients(
    e: Embeddings,
    c: Circuit,
    matrix: Matrix,
    generator: torch.Generator,
    chunks: int,
    chunk: int,
    forward: Forward = logits,
) -> Iterator[Float[Tensor, "d_model d_model"]]:
    """Independent estimates of the population gradient; their spread gives its error bars."""
    N, T, _ = e.shape
    for _ in range(chunks):
        yield gradient(e, c, matrix, sample(N, T, chunk, generator), forward)


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
