"""Recall between any two sets of embeddings, in any TransformerLens model.

    recall_between(model, "W_O2", inputs="W_V2 w_E", outputs="w_U")             the paper's W_O2
    recall_between(model, "W_K2^T", inputs="w_E", outputs="Phi_1 w_E")          the paper's W_K2: a query chooses a key
    recall_between(model, W, inputs=u, outputs=v, targets=torch.tensor([...]))  any matrix, any rows

The score of output j for input i is v_j^T W u_i. Matrices and embeddings go by the names of `model.memories`, `^T` for
a transpose, or are given as tensors. Biases are not part of a memory and are left out.
"""

import re
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.probes.memory_recall import reading
from induction_memory.probes.source import Steps, read
from induction_memory.probes.stack import Stack, head_labels

READINGS = {"recall": "", "margin": "_margin", "rank": "_rank", "sir": "_sir"}


def recall_between(
    source: Any,
    W: str | Float[Tensor, "d_out d_in"],
    *,
    inputs: str | Float[Tensor, "i d_in"],
    outputs: str | Float[Tensor, "j d_out"],
    targets: Int[Tensor, " i"] | None = None,
    steps: Steps = "all",
) -> pd.DataFrame:
    """Recall, mean margin, mean rank and signal to interference: one row a step and head.

    `targets[i]` is the output that input i should recall, -1 for an input to leave out; input i recalls output i when
    not given. Heads of two different layers make pairs "h>g": embeddings remapped by head h, matrix of head g.
    """
    opened = read(source, steps=steps)
    stack = opened.stack
    matrix, layer = _matrix(stack, W)
    (u, u_layer), (v, v_layer) = _rows(stack, inputs), _rows(stack, outputs)
    if any(rows.shape[1] > 1 and rows_layer != layer for rows, rows_layer in ((u, u_layer), (v, v_layer))):
        u, v = (rows.unsqueeze(1 if at == layer else 2) for rows, at in ((u, u_layer), (v, v_layer)))
        matrix = matrix.unsqueeze(1)
    for rows, side, name in ((u, -1, "inputs"), (v, -2, "outputs")):
        size = matrix.shape[side]
        require(rows.shape[-1] == size, name, f"rows of the matrix's dimension {size}", rows.shape[-1])
    n_inputs, n_outputs = u.shape[-2], v.shape[-2]
    if targets is None:
        require(n_inputs == n_outputs, "targets", f"one for each of the {n_inputs} inputs", "none")
        targets = torch.arange(n_inputs)
    require(len(targets) == n_inputs, "targets", f"one for each of the {n_inputs} inputs", len(targets))
    require(int(targets.max()) < n_outputs, "targets", f"below {n_outputs}, the outputs", int(targets.max()))
    used = (targets >= 0).nonzero().flatten()
    require(len(used) > 0, "targets", "at least one that is not -1", "none")
    table = u[..., used, :] @ matrix.mT @ v.mT
    heads = head_labels(max(table.shape[1:-2]), sum(size > 1 for size in table.shape[1:-2]))
    table = table.flatten(1, -3)
    values = {name: reading(kind, table, targets[used]) for name, kind in READINGS.items()}
    columns = {name: value.expand(len(opened.steps), -1).flatten().numpy() for name, value in values.items()}
    index = pd.MultiIndex.from_product([opened.steps, heads], names=["step", "head"])
    return pd.DataFrame(columns, index=index).reset_index()


def _matrix(stack: Stack, W: str | Tensor) -> tuple[Float[Tensor, "step head d_out d_in"], int]:
    if isinstance(W, Tensor):
        return W[None, None], 0
    require(isinstance(W, str), "W", "a matrix or the name of one", repr(W))
    matrix = stack.memory(W.removesuffix("^T"))
    return matrix.mT if W.endswith("^T") else matrix, _layer(W)


def _rows(stack: Stack, rows: str | Tensor) -> tuple[Float[Tensor, "step head n d"], int]:
    if isinstance(rows, Tensor):
        return rows[None, None], 0
    require(isinstance(rows, str), "embeddings", "rows of vectors or their name", repr(rows))
    return stack.embedding(rows), _layer(rows)


def _layer(name: str) -> int:
    """The layer of the (first) matrix in a name; 0 if there is none."""
    number = re.search(r"\d+", name)
    return int(number[0]) if number else 0
