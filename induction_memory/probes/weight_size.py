"""Weight probes: how large each memory is, how far it has moved, and how much of it is the ideal memory.

For W one of W_K1, W_K2, W_O2, W_F, with singular values s_1 >= s_2 >= ... and W_0 its value at initialisation:

    norm          |W|_F                                 distance     |W - W_0|_F
    cosine        <W, W_*> / (|W| |W_*|)                with the ideal memory W_* (`model/associations.py`)
    explained     |P W|^2 / |W|^2, P the projection on the span of the single v_j u_i^T of the ideal pairs
    soft_rank     exp(-sum q log q), q_i = s_i / sum s  stable_rank  |W|_F^2 / s_1^2

W_K1 and W_K2 are the products W_Q W_K^T here. W_F and W_O2 compete late in training (Section 5). Their overlap is the
cosine of W_F and Phi_2 = W_O2 W_V2, as matrices and as tables of logits w_U(j)^T W w_E(i), centred over j.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require_known
from induction_memory.memory.edits import alignment, cosine, explained, where_finite
from induction_memory.model import memories
from induction_memory.model.associations import MEMORIES, TABLE
from induction_memory.model.memories import Memories, head_names
from induction_memory.probes.registry import Probe
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Stack, select
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps


def matrix(m: Memories, name: str) -> Float[Tensor, "step *head d_out d_in"]:
    """The matrix; an error with the reason if the model does not have it."""
    if name == "W_F":
        m.require_weights(f"blocks.{m.n_layers - 1}.mlp.W_F", "a linear feed-forward in the last layer")
    else:
        m.require_layers(memories.layers_of(name)[0])
    return m.memory(name, memories.layers_of(name))


def soft_rank(s: Float[Tensor, "*lead k"]) -> Float[Tensor, "*lead"]:
    """exp of the entropy of the singular values."""
    return torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp()


def singular_values(stack: Stack, memory: str) -> Float[Tensor, "step *head k"]:
    """The spectrum of a memory at each step, nan where the matrix is not finite."""
    return stack.once(f"spectrum of {memory}", lambda: where_finite(torch.linalg.svdvals, matrix(stack, memory)))


def norm(memory: str, stack: Stack) -> Float[Tensor, "step *head"]:
    return torch.linalg.matrix_norm(matrix(stack, memory))


def distance(memory: str, stack: Stack) -> Float[Tensor, "step *head"]:
    start = Memories(stack.require_initial())
    return torch.linalg.matrix_norm(matrix(stack, memory) - matrix(start, memory))


def stable_rank(memory: str, stack: Stack) -> Float[Tensor, "step *head"]:
    s = singular_values(stack, memory)
    return s.square().sum(-1) / s[..., 0].square()


def overlap(stack: Stack) -> Float[Tensor, "step head"]:
    """Cosine of W_F and Phi_2, for each head of layer 2."""
    return cosine(matrix(stack, "W_F").unsqueeze(1), matrix(stack, "Phi_2"))


def overlap_of_logits(stack: Stack) -> Float[Tensor, "step head"]:
    """Cosine of the logits of W_F and Phi_2, for each head of layer 2."""
    W_F, Phi_2 = matrix(stack, "W_F").unsqueeze(1), matrix(stack, "Phi_2")
    w_U, w_E = stack.embedding("w_U"), stack.embedding("w_E")
    centred = w_U - w_U.mean(-2, keepdim=True)
    return cosine(centred @ W_F @ w_E.mT, centred @ Phi_2 @ w_E.mT)


KINDS: dict[str, tuple[Callable[[str, Stack], Tensor], str]] = {
    "norm": (norm, "Frobenius norm |W|_F"),
    "distance": (distance, "|W - W_0|_F, W_0 the weights at initialisation"),
    "cosine": (lambda memory, s: alignment(s.association(memory)), "<W, W_*> / (|W| |W_*|), W_* the ideal memory"),
    "explained": (
        lambda memory, s: explained(s.association(memory)),
        "|P W|^2 / |W|^2, P the projection on the span of the stored pairs v_i u_i^T",
    ),
    "soft_rank": (
        lambda memory, s: soft_rank(singular_values(s, memory)),
        "exp of the entropy of the singular values s_i / sum s",
    ),
    "stable_rank": (stable_rank, "|W|_F^2 / s_1^2"),
}
PAIRED = ("cosine", "explained")  # they compare W_K2 with the embeddings written by each layer-1 head
OVERLAPS = {
    "overlap_W_F_W_O2": (overlap, "<W_F, Phi_2> / (|W_F| |Phi_2|), Phi_2 = W_O2 W_V2"),
    "overlap_logits_W_F_W_O2": (
        overlap_of_logits,
        "cosine of the tables w_U^T W_F w_E and w_U^T Phi_2 w_E, centred over outputs",
    ),
}


def weight_probe(kind: str, memory: str) -> Probe:
    measure, what = KINDS[kind]
    layers = memories.layers_of(memory, TABLE[memory].inputs if kind in PAIRED else "")
    return Probe(f"{kind}_{memory}", f"{memory}: {what}", partial(measure, memory), "weights", layers, "weights")


PROBES = {f"{kind}_{memory}": weight_probe(kind, memory) for kind in KINDS for memory in MEMORIES} | {
    name: Probe(name, about, measure, "weights", (2,), "weights") for name, (measure, about) in OVERLAPS.items()
}


def spectrum(source: Any, memory: str, *, step: "Steps" = "all", progress: "Progress" = None) -> pd.DataFrame:
    """Singular values of a memory: one row per step, head and rank (1 = the largest).

    >>> import induction_memory as im
    >>> im.probes.spectrum("induction-small", "W_O2", step=600).head(2).round(2)
       step  head  rank  value
    0   600  L2H1     1   5.58
    1   600  L2H1     2   5.47
    """
    require_known(memory, MEMORIES, "memory")

    def measure(at: At) -> dict[str, pd.DataFrame]:
        values = singular_values(at.stack, memory)
        heads, n = head_names(memories.layers_of(memory), at.stack.n_heads), len(at.steps)
        values = values.expand(n, *values.shape[1:]).reshape(n, len(heads), -1)
        ranks = range(1, values.shape[-1] + 1)
        index = pd.MultiIndex.from_product([at.steps, heads, ranks], names=["step", "head", "rank"])
        return {"table": pd.DataFrame({"value": values.double().flatten().cpu().numpy()}, index=index).reset_index()}

    return over_steps(select(source, step=step, progress=progress), measure, size=SPECTRA)["table"]


SPECTRA = 32  # steps whose matrices are decomposed at once
