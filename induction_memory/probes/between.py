"""Recall between any two sets of embeddings, in any TransformerLens model.

    recall_between(model, "W_O2", inputs="W_V2 w_E", outputs="w_U")             the paper's W_O2
    recall_between(model, "W_K2^T", inputs="w_E", outputs="Phi_1 w_E")          the paper's W_K2: a query chooses a key
    recall_between(model, W, inputs=u, outputs=v, targets=torch.tensor([...]))  any matrix, any rows

The score of output j for input i is v_j^T W u_i. Matrices and embeddings go by the names of `model.memories`, `^T` for
a transpose, or are given as tensors. Biases are not part of a memory and are left out.
"""

from typing import Any

import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import require
from induction_memory.memory.association import matching
from induction_memory.model import axes
from induction_memory.model.head_names import head_names
from induction_memory.probes import memory_recall
from induction_memory.subject import Steps, subject
from induction_memory.subject.stack import Stack
from induction_memory.trajectory.kept_results import key_of

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
    """Recall, mean margin, mean rank and signal to interference: one row per step and head.

    `targets[i]` is the output that input i should recall, -1 for an input to leave out; without `targets`, input i
    should recall output i. Heads of two different layers make pairs: `L1H3>L2H1`.

    >>> import induction_memory as im
    >>> im.probes.recall_between("induction-small", "W_O2", inputs="W_V2 w_E", outputs="w_U").round(2)
       step  head  recall  margin   rank   sir
    0     0  L2H1    0.00   -0.50  37.74 -0.30
    1   100  L2H1    0.95    3.43   1.12  5.64
    2   200  L2H1    1.00    5.84   1.00  6.51
    3   300  L2H1    1.00    6.68   1.00  6.75
    4   600  L2H1    1.00    7.60   1.00  7.05
    """
    opened = subject(source, step=steps, field="steps")
    if opened.series is not None:
        given: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "targets": targets}
        key = key_of({"recall between": W} | given)
        return opened.series.table(lambda model: recall_between(model, W, **given), key=key)
    named = [x for x in (W, inputs, outputs) if isinstance(x, str)]
    layers = axes.layers_of(*named)
    matrix, u, v = _matrix(opened.stack, W, layers), *(_rows(opened.stack, x, layers) for x in (inputs, outputs))
    for rows, side, name in ((u, -1, "inputs"), (v, -2, "outputs")):
        size = matrix.shape[side]
        require(rows.shape[-1] == size, name, f"rows of the matrix's dimension {size}", rows.shape[-1])
    a = matching(matrix, u, v, targets)
    heads = head_names(layers, opened.stack.n_heads)
    columns = {}
    for name, suffix in READINGS.items():
        value = memory_recall.READINGS[suffix][0](a).double().reshape(-1, len(heads))
        columns[name] = value.expand(len(opened.steps), -1).flatten().cpu().numpy()
    index = pd.MultiIndex.from_product([opened.steps, heads], names=["step", "head"])
    return pd.DataFrame(columns, index=index).reset_index()


def _matrix(stack: Stack, W: str | Tensor, layers: tuple[int, ...]) -> Float[Tensor, "step *head d_out d_in"]:
    if isinstance(W, Tensor):
        return axes.spread(W.detach()[None, None], layers)
    require(isinstance(W, str), "W", "a matrix or the name of one", repr(W))
    matrix = axes.matrix(stack, W.removesuffix("^T"), layers)
    return matrix.mT if W.endswith("^T") else matrix


def _rows(stack: Stack, rows: str | Tensor, layers: tuple[int, ...]) -> Float[Tensor, "step *head n d"]:
    if isinstance(rows, Tensor):
        return axes.spread(rows.detach()[None, None], layers)
    require(isinstance(rows, str), "embeddings", "rows of vectors or their name", repr(rows))
    return axes.rows(stack, rows, layers)
