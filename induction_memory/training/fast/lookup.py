"""Linear maps of the embedded input, without the products.

The input of the first layer is x_t = w_E(z_t) + p_t. A linear map of it has one row per token and one per position:

    x_t W = (W_E W)[z_t] + (W_pos W)[t]

and with dy its gradient, summed over all places where a token, or a position, stands,

    dW = W_E^T (sum of dy by token) + W_pos^T (sum of dy by position)

which costs a twelfth of dW = x^T dy, a sum over all places one by one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.training.fast.workspace import Sums


@dataclass(frozen=True)
class Table:
    """The two small tables of a map: its rows by token and by position."""

    by_token: Float[Tensor, "vocab d_out"]
    by_position: Float[Tensor, "pos d_out"]


def look_up(
    table: Table,
    tokens: Int[Tensor, "batch query"],
    positions: Int[Tensor, "batch query"] | None,
    out: Float[Tensor, "batch query d_out"],
) -> None:
    """out = by_token[tokens] + by_position[positions]; all positions in order when none are given."""
    rows = out.view(-1, out.shape[-1])
    torch.index_select(table.by_token, 0, tokens.reshape(-1), out=rows)
    if positions is None:
        out.add_(table.by_position)
    else:
        rows.add_(table.by_position.index_select(0, positions.reshape(-1)))


def add_by_row(
    gradient: Float[Tensor, "batch query d_out"],
    tokens: Int[Tensor, "batch query"],
    positions: Int[Tensor, "batch query"] | None,
    sums: Sums,
    name: str,
    vocab: int,
    pos: int,
) -> None:
    """Add a gradient's rows to the sums `name.token` and `name.position`."""
    width = gradient.shape[-1]
    rows = gradient.view(-1, width)
    sums(f"{name}.token", vocab, width).index_add_(0, tokens.reshape(-1), rows)
    by_position = sums(f"{name}.position", pos, width)
    if positions is None:
        by_position.add_(gradient.sum(0))
    else:
        by_position.index_add_(0, positions.reshape(-1), rows)
