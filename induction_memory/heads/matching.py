"""Match the heads of two runs by their scores.

The profile of a head is the row of its scores, one per vote and role, each clipped to [0, 1] (votes.py), without its
layer and index. The match of two runs is the assignment with the least sum of the distances |profile_a - profile_b|
(Hungarian algorithm). Two heads with the same profile can be exchanged at no cost. So a match measures how similar the
two sets of heads are, not which head corresponds to which. Scores that are unknown in either run do not enter the
distance.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.heads.roles import VOTES
from induction_memory.heads.selection import listed, rows_of

WITHOUT_EFFECTS = ("weights", "attention")
DECIMALS = 3  # of the distances: rounding errors of the scores do not decide between heads that are alike


def profiles(votes: pd.DataFrame, given: Sequence[str] = VOTES) -> dict[str, Float[np.ndarray, "head score"]]:
    """Run -> its heads' profiles from the votes given, in the order of its table; `votes` has one step per run."""
    tables = {}
    for run in listed(votes, "run"):
        own = rows_of(votes, run=run, vote=tuple(given))
        scores = [rows_of(own, head=head)["score"].to_numpy() for head in listed(own, "head")]
        tables[run] = np.clip(np.array(scores), 0, 1)
    return tables


def match(
    a: Float[np.ndarray, "head_a score"], b: Float[np.ndarray, "head_b score"]
) -> tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"], Float[np.ndarray, " pair"]]:
    """Rows of a, the rows of b they are matched with, and the distances."""
    from scipy.optimize import linear_sum_assignment

    distance = np.sqrt(np.nansum(np.square(a[:, None] - b[None, :]), axis=-1))
    rows, columns = linear_sum_assignment(distance.round(DECIMALS))
    return rows, columns, distance[rows, columns]


def matches(roles: pd.DataFrame, votes: pd.DataFrame) -> pd.DataFrame:
    """One row per pair of runs and matched pair of heads: their roles, and whether role, layer and name agree."""
    table = profiles(votes)
    facts = {run: [rows_of(roles, run=run)[name].tolist() for name in ("head", "role", "layer")] for run in table}
    rows = []
    for first, second in combinations(table, 2):
        (heads_a, roles_a, layers_a), (heads_b, roles_b, layers_b) = facts[first], facts[second]
        for i, j, distance in zip(*match(table[first], table[second]), strict=True):
            rows.append(
                {
                    "run_a": first,
                    "run_b": second,
                    "head_a": heads_a[i],
                    "head_b": heads_b[j],
                    "distance": float(distance),
                    "role_a": roles_a[i],
                    "role_b": roles_b[j],
                    "same_role": roles_a[i] == roles_b[j],
                    "same_layer": layers_a[i] == layers_b[j],
                    "same_head": heads_a[i] == heads_b[j],
                }
            )
    columns = ["run_a", "run_b", "head_a", "head_b", "distance", "role_a", "role_b", "same_role", "same_layer"]
    return pd.DataFrame(rows, columns=[*columns, "same_head"])
