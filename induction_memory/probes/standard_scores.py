"""The standard scores of heads, on random sequences of n tokens repeated once. A[t, s] is the attention of t to s.

previous_token   mean of A[t, t-1]
induction        mean of A[t, t-n+1] over the second half: the token after the same one in the first half
"""

from typing import Any

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import require
from induction_memory.model.memories import head_name
from induction_memory.probes.activations import run_repeated
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, select
from induction_memory.trajectory.search import Steps


def previous_mass(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, " head"]:
    """Mean attention to the previous position."""
    return pattern.diagonal(-1, dim1=-2, dim2=-1).double().mean((0, 2))


def head_scores(source: Any, *, step: Steps = None, length: int | None = None) -> pd.DataFrame:
    """The standard scores of every head at the last step, or at others: head (`L2H1`), previous_token, induction.

    `length` is that of the random sequence that is repeated; half the context if not given.

    >>> head_scores("induction-small", length=32)["previous_token"].round(2).tolist()
    [0.8, 0.07]
    """

    def measure(at: At) -> dict[str, pd.DataFrame]:
        cfg, rows = at.model.cfg, []
        longest = cfg.n_ctx // 2
        require(length is None or 2 <= length <= longest, "length", f"2 to {longest} (half the context)", length)
        for layer, pattern in enumerate(run_repeated(at.model, cfg.n_layers, length), start=1):
            previous, repeated = previous_mass(pattern), repeated_induction(pattern)
            for head in range(cfg.n_heads):
                score = {"previous_token": float(previous[head]), "induction": float(repeated[head])}
                rows.append({"head": head_name(layer, head + 1)} | score)
        return {"table": pd.DataFrame(rows)}

    return over_steps(select(source, step=step), measure, settings={"head scores": length})["table"]


def repeated_induction(pattern: Float[Tensor, "batch head query key"]) -> Float[Tensor, " head"]:
    """On sequences repeated once: mean attention from the second half to the token after the same one in the first."""
    n = pattern.shape[-1] // 2
    stripe = pattern.diagonal(1 - n, dim1=-2, dim2=-1)  # entry i is the query n - 1 + i
    return stripe[..., 1:].double().mean((0, 2))
