"""Each head's share of each role: its share of the role's route, in the layer where that route has most effect.

Every head with a share of the route (votes.py) counts, whichever role it has. The effective number of heads is the
participation ratio of the shares.
"""

import numpy as np
import pandas as pd

from induction_memory.heads.selection import listed, rows_of
from induction_memory.heads.votes import ROLES, ROUTE_OF


def strongest_layer(totals: pd.DataFrame, run: str, role: str) -> tuple[int, float] | None:
    """The layer in which the role's route has most effect, and its effective number of heads; None without effect."""
    own = rows_of(totals, run=run, game=ROUTE_OF[role])
    effective = own["effective"].to_numpy()
    if not np.isfinite(effective).any():
        return None
    best = int(np.argmax(np.where(np.isfinite(effective), own["effect"].to_numpy(), -np.inf)))
    return own["layer"].tolist()[best], float(effective[best])


def carriers(shares: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """One row per run, role and head: layer, share, share_se, effective (the same for all heads). One step per run."""
    rows = []
    for run in listed(totals, "run"):
        for role in ROLES:
            strongest = strongest_layer(totals, run, role)
            if strongest is None:
                continue
            layer, effective = strongest
            own = rows_of(shares, run=run, game=ROUTE_OF[role], layer=layer)
            error = (own["shapley_se"] * own["share"] / own["shapley"]).abs()
            for head, share, se in zip(own["head"], own["share"], error, strict=True):
                rows.append((run, role, layer, head, share, se, effective))
    return pd.DataFrame(rows, columns=["run", "role", "layer", "head", "share", "share_se", "effective"])


def largest_share(shares: pd.DataFrame, totals: pd.DataFrame, run: str, role: str) -> tuple[float, float]:
    """The effective number of heads of a role in a run, and the largest share of one head; nan without effect."""
    strongest = strongest_layer(totals, run, role)
    if strongest is None:
        return np.nan, np.nan
    own = rows_of(shares, run=run, game=ROUTE_OF[role], layer=strongest[0])["share"].to_numpy()
    return strongest[1], float(own.max())
