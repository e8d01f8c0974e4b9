"""Weight probes: how large each memory is, how far it has moved, and how much of it is the memory we look for.

For W one of W_K1, W_K2, W_O2, W_F, with singular values s_1 >= s_2 >= ... and W_0 its value at initialisation:

    norm          |W|_F                                 distance     |W - W_0|_F
    cosine        <W, W_*> / (|W| |W_*|)                with the ideal memory W_* = sum of v_i u_i^T (Section 4.2)
    explained     |P W|^2 / |W|^2, P the projection on the span of all single v_i u_i^T: associations of any strength
    soft_rank     exp(-sum q log q), q_i = s_i / sum s  stable_rank  |W|_F^2 / s_1^2

P W solves the normal equations: with G_ij = (v_i . v_j)(u_i . u_j) and b_i = v_i^T W u_i, |P W|^2 = b^T G^+ b. A random
W has about n / (d_out d_in) of its square explained by n pairs.

The pairs: p_t with p_{t-1}; w_E(k) with Phi_1 w_E(k); w_U(k) with W_V2 w_E(k); for W_F, W_* = sum of
log(pi_b(j | i) + 0.01), centred, times w_U(j) w_E(i)^T, and the span is that of all w_U(j) w_E(i)^T.

Overlap of W_F and W_O2, which compete late in training (Section 5): the cosine of W_F and Phi_2 = W_O2 W_V2 as
matrices, and of their tables of logits w_U(j)^T W w_E(i), centred over j.
"""

import re
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.probes.source import Steps, read
from induction_memory.probes.stack import Stack, head_labels, where_finite

MEMORIES = ("W_K1", "W_K2", "W_O2", "W_F")
SMOOTHING = 0.01  # added to pi_b before the logarithm
_KINDS = {
    "norm": "Frobenius norm |W|_F",
    "distance": "|W - W_0|_F, W_0 the weights at initialisation",
    "cosine": "<W, W_*> / (|W| |W_*|), W_* the ideal memory",
    "explained": "|P W|^2 / |W|^2, P the projection on the span of the stored pairs v_i u_i^T",
    "soft_rank": "exp of the entropy of the singular values s_i / sum s",
    "stable_rank": "|W|_F^2 / s_1^2",
}
PROBES = {f"{kind}_{W}": f"{W}: {what}" for kind, what in _KINDS.items() for W in MEMORIES} | {
    "overlap_W_F_W_O2": "<W_F, Phi_2> / (|W_F| |Phi_2|), Phi_2 = W_O2 W_V2",
    "overlap_logits_W_F_W_O2": "cosine of the tables w_U^T W_F w_E and w_U^T Phi_2 w_E, centred over outputs",
}
PATTERN = re.compile(
    rf"(?P<kind>{'|'.join(_KINDS)})_(?P<memory>{'|'.join(MEMORIES)})|overlap_(?P<logits>logits_)?W_F_W_O2"
)


def cosine(A: Float[Tensor, "*#lead m n"], B: Float[Tensor, "*#lead m n"]) -> Float[Tensor, "*lead"]:
    """<A, B> / (|A| |B|)."""
    return (A * B).sum((-2, -1)) / (A.square().sum((-2, -1)) * B.square().sum((-2, -1))).sqrt()


def explained(
    W: Float[Tensor, "*#lead d_out d_in"],
    outputs: Float[Tensor, "*#lead n d_out"],
    inputs: Float[Tensor, "*#lead n d_in"],
) -> Float[Tensor, "*lead"]:
    """Share of |W|^2 in the span of the single outer products v_i u_i^T."""
    W, outputs, inputs = W.double(), outputs.double(), inputs.double()
    gram = (outputs @ outputs.mT) * (inputs @ inputs.mT)
    b = ((outputs @ W) * inputs).sum(-1, keepdim=True)
    solved = where_finite(lambda finite: torch.linalg.pinv(finite, hermitian=True, rtol=1e-10), gram) @ b
    return (b * solved).sum((-2, -1)) / W.square().sum((-2, -1))


def soft_rank(s: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead"]:
    """exp of the entropy of the singular values."""
    return torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp()


def ideal_memory(stack: Stack, memory: str) -> Float[Tensor, "step *head d_out d_in"]:
    """W_*, the sum of the outer products that the memory should store."""
    if memory == "W_F":
        from induction_memory.model.construct import bigram_logits

        logits = bigram_logits(stack.require_task(), SMOOTHING)
        return (stack.embedding("w_U").mT @ logits.mT @ stack.embedding("w_E"))[:, 0]
    outputs, inputs = stored_pairs(stack, memory)
    return outputs.mT @ inputs


def stored_pairs(stack: Stack, memory: str) -> tuple[Tensor, Tensor]:
    """Output and input embeddings of the pairs, [step, *head, n, d]: own heads, or for W_K2 layer 1's and its own.

    W_K2 should store the triggers only, when they are fixed.
    """
    if memory == "W_K1":
        p = stack.embedding("p")[..., : stack.length, :]
        return p[..., 1:, :], p[..., :-1, :]
    stack.require_layers(2)
    if memory == "W_O2":
        return stack.embedding("w_U"), stack.embedding("W_V2 w_E")
    w_E, remapped = stack.embedding("w_E").unsqueeze(1), stack.embedding("Phi_1 w_E").unsqueeze(2)
    if stack.task is not None and stack.task.fixed_triggers is not None:
        Q = torch.tensor(stack.task.fixed_triggers)
        return w_E[..., Q, :], remapped[..., Q, :]
    return w_E, remapped


def explained_by_tokens(
    W: Float[Tensor, "*#lead d_out d_in"],
    outputs: Float[Tensor, "*#lead n d_out"],
    inputs: Float[Tensor, "*#lead m d_in"],
) -> Float[Tensor, "*lead"]:
    """Share of |W|^2 in the span of all v_j u_i^T: what is left between the two spans."""
    out_basis, in_basis = torch.linalg.qr(outputs.mT.double()).Q, torch.linalg.qr(inputs.mT.double()).Q
    inside = out_basis.mT @ W.double() @ in_basis
    return inside.square().sum((-2, -1)) / W.double().square().sum((-2, -1))


def matrix(stack: Stack, memory: str) -> Float[Tensor, "step *head d_out d_in"]:
    """The memory itself; a reason instead when the model has none."""
    if memory == "W_F":
        stack.require_weights(f"blocks.{stack.n_layers - 1}.mlp.W_F", "a linear feed-forward in the last layer")
        return stack.memory("W_F")[:, 0]
    if memory != "W_K1":
        stack.require_layers(2)
    return stack.memory(memory)


def measure(stack: Stack, name: str) -> Float[Tensor, "step *head"]:
    """The value of a weight probe at each step of the stack."""
    match = PATTERN.fullmatch(name)
    assert match is not None
    if match["kind"] is None:
        return _overlap(stack, logits=bool(match["logits"]))
    memory = match["memory"]
    W = matrix(stack, memory)
    if match["kind"] == "norm":
        return torch.linalg.matrix_norm(W)
    if match["kind"] == "distance":
        start = Stack(stack.require_initial(), 1)
        return torch.linalg.matrix_norm(W - matrix(start, memory))
    if match["kind"] in ("cosine", "explained"):
        return _alignment(stack, match["kind"], memory, W.unsqueeze(1) if memory == "W_K2" else W)
    s = stack.once(f"spectrum of {memory}", lambda: where_finite(torch.linalg.svdvals, W))
    if match["kind"] == "soft_rank":
        return soft_rank(s)
    return s.square().sum(-1) / s[..., 0].square()


def _alignment(stack: Stack, kind: str, memory: str, W: Tensor) -> Tensor:
    if kind == "cosine":
        return cosine(W, ideal_memory(stack, memory))
    if memory == "W_F":
        return explained_by_tokens(W, stack.embedding("w_U")[:, 0], stack.embedding("w_E")[:, 0])
    return explained(W, *stored_pairs(stack, memory))


def _overlap(stack: Stack, *, logits: bool) -> Float[Tensor, "step head"]:
    W_F, Phi_2 = matrix(stack, "W_F").unsqueeze(1), matrix(stack, "Phi_2")
    if not logits:
        return cosine(W_F, Phi_2)
    w_U, w_E = stack.embedding("w_U"), stack.embedding("w_E")
    centred = w_U - w_U.mean(-2, keepdim=True)
    return cosine(centred @ W_F @ w_E.mT, centred @ Phi_2 @ w_E.mT)


def spectrum(source: Any, memory: str, *, steps: Steps = "all") -> pd.DataFrame:
    """Singular values of a memory: one row a step, head and rank (1 = the largest)."""
    require(memory in MEMORIES, "memory", f"one of {', '.join(MEMORIES)}", repr(memory))
    opened = read(source, steps=steps)
    values = where_finite(torch.linalg.svdvals, matrix(opened.stack, memory))
    values = values.expand(len(opened.steps), *values.shape[1:])
    heads = head_labels(opened.stack.n_heads, 0 if memory == "W_F" else 1)
    values = values.reshape(len(opened.steps), len(heads), -1)
    index = pd.MultiIndex.from_product(
        [opened.steps, heads, range(1, values.shape[-1] + 1)], names=["step", "head", "rank"]
    )
    return pd.DataFrame({"value": values.double().flatten().numpy()}, index=index).reset_index()
