"""The circuit without simplifications: all streams in one residual stream (the model of Section 4.2 without W_F).

    x_t    = w_E(z_t) + p_t
    x_t'   = x_t + Phi_1 sum_{s <= t} softmax over s of (x_s^T W_K1 x_t) x_s
    xi     = W_U (x_T' + W_O2 W_V2 sum_t softmax over t of (x_t'^T W_K2 x_T') x_t')

Every residual stream is a combination of the columns of E = [w_E, p] and of Phi_1 E. So a sequence is represented by
its coefficients on these columns, and only the last position is computed in d dimensions.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from induction_memory.theory.circuit import Circuit, Embeddings


def logits(e: Embeddings, c: Circuit, tokens: Int64[Tensor, "batch pos"]) -> Float[Tensor, "batch vocab"]:
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
