"""Who carries each role: the heads' shares of the role's route, in the layer where that route has most effect.

The route of a role (votes.py) is carried by all heads that have a share in it, whatever their verdict; how many they
are, effectively, is the participation ratio of the shares.
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
    """One row a run, role and head: layer, share, share_se, effective (the same for all heads). One step a run."""
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
    """The effective number of heads that carry a role in a run, and the largest share of one; nan without effect."""
    strongest = strongest_layer(totals, run, role)
    if strongest is None:
        return np.nan, np.nan
    own = rows_of(shares, run=run, game=ROUTE_OF[role], layer=strongest[0])["share"].to_numpy()
    return strongest[1], float(own.max())
