"""The gradient steps of Theorem 3, and what they wrote (Appendix B.3)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.memory.association import Association, causal, matching
from induction_memory.memory.recall import recall
from induction_memory.paper.theory import circuit
from induction_memory.paper.theory.circuit import (
    Circuit,
    Embeddings,
    Forward,
    Matrix,
    Positions,
    correct,
    logits,
    sample,
    streamed_gradients,
    zeros,
)

TOP_DOWN: tuple[Matrix, ...] = ("W_O2", "W_K2", "W_K1")

Architecture = Callable[[Matrix], Forward]
"""The forward through which each matrix's gradient is taken."""


def simplified(positions: Positions = "none") -> Architecture:
    """The paper's split streams: both go through W_O2 while it learns, then only x_{t,0} does."""
    return lambda matrix: partial(logits, positions=positions, both_streams=matrix == "W_O2")


def superposed() -> Architecture:
    """One residual stream for everything, as in the trained models."""
    return lambda matrix: circuit.residual_logits


def final(architecture: Architecture) -> Forward:
    """The forward of the finished model: that of the last step."""
    return architecture("W_K1")


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
    architecture: Architecture | None = None,
    start: Circuit | None = None,
    chunks: int = 2,
    chunk: int = 16384,
) -> list[Circuit]:
    """The circuit after each step; every step sees fresh sequences and the same step size."""
    architecture = simplified() if architecture is None else architecture
    circuits = [zeros(e.shape[-1]) if start is None else start]
    for matrix in order:
        c = circuits[-1]
        estimates = streamed_gradients(e, c, matrix, generator, chunks, chunk, architecture(matrix))
        step = torch.stack(list(estimates)).mean(0)
        circuits.append(replace(c, **{matrix: getattr(c, matrix) - eta * step}))
    return circuits[1:]


def accuracy(
    e: Embeddings, c: Circuit, generator: torch.Generator, forward: Forward = logits, sequences: int = 8192
) -> float:
    """In-context accuracy on fresh sequences."""
    N, T, _ = e.shape
    return correct(e, c, sample(N, T, sequences, generator), forward).double().mean().item()


def recalls(e: Embeddings, c: Circuit) -> dict[Matrix, float]:
    """Recall of each memory's own pairs; for W_K1 among the positions that the causal mask allows."""
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
