"""How stable roles are across runs, with bootstrap intervals over the runs.

For each role, over runs in one relation (resampling.py):

    heads        number of heads with the role
    effective    effective number of heads on its route (participation ratio), in the layer where it is strongest
    leader       the largest share of one head in that route
    present      whether any head has it
    born         the step from which its leading head keeps it to the end (runs read at several steps)
    agreement    of two runs' matched heads (matching.py): 2 |both have it| / (heads of one + heads of the other)
    same layer   whether the leading heads of two runs are in one layer
    same head    whether they have the same name; by chance 1 / heads of a layer, if the layer is the same
"""

import numpy as np
import pandas as pd

from induction_memory.heads.carriers import largest_share
from induction_memory.heads.history import births
from induction_memory.heads.resampling import interval, mean_over_pairs, mean_over_runs, pair_matrix, relations
from induction_memory.heads.selection import at_last_step, listed, rows_of
from induction_memory.heads.votes import ROLES, ROUTE_OF
from induction_memory.runner.components import layer_of


def stability(
    runs: pd.DataFrame,
    roles: pd.DataFrame,
    shares: pd.DataFrame,
    totals: pd.DataFrame,
    matches: pd.DataFrame,
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per relation, role and measure: value, low, high, runs. All steps of each run; the last one decides."""
    born = births(roles) if len(listed(roles, "step")) > 1 else None
    roles, shares, totals = at_last_step(roles), at_last_step(shares), at_last_step(totals)
    rows = []
    for relation, pairs in relations(runs).items():
        names = list(dict.fromkeys(run for pair in pairs for run in pair))
        for role in ROLES:
            leaders = {run: leader(run, role, roles, shares) for run in names}
            measured = {
                **{name: mean_over_runs(x) for name, x in _of_runs(names, role, roles, shares, totals).items()},
                **({} if born is None else {"born": mean_over_runs(_born(born, leaders))}),
                **{name: mean_over_pairs(x) for name, x in _of_pairs(pairs, role, leaders, matches).items()},
            }
            for measure, statistic in measured.items():
                value, low, high = interval(statistic, len(names), np.random.default_rng(seed))
                rows.append((relation, role, measure, value, low, high, len(names)))
    return pd.DataFrame(rows, columns=["relation", "role", "measure", "value", "low", "high", "runs"])


def leader(run: str, role: str, roles: pd.DataFrame, shares: pd.DataFrame) -> str | None:
    """The head of a role with the largest effect by the role's route; None when no head has the role."""
    heads = listed(rows_of(roles, run=run, role=role), "head")
    effects = rows_of(shares, run=run, game=ROUTE_OF[role], head=heads)
    if len(effects) == 0:
        return heads[0] if heads else None
    return effects["head"].tolist()[int(np.argmax(effects["effect"].to_numpy()))]


def _of_runs(
    names: list[str], role: str, roles: pd.DataFrame, shares: pd.DataFrame, totals: pd.DataFrame
) -> dict[str, np.ndarray]:
    heads = np.array([float(len(rows_of(roles, run=run, role=role))) for run in names])
    effective, largest = np.array([largest_share(shares, totals, run, role) for run in names]).T
    return {"heads": heads, "effective": effective, "leader": largest, "present": (heads > 0).astype(float)}


def _born(born: pd.DataFrame, leaders: dict[str, str | None]) -> np.ndarray:
    steps = [rows_of(born, run=run, head=head)["born"].tolist() for run, head in leaders.items()]
    return np.array([found[0] if found else np.nan for found in steps])


def _of_pairs(
    pairs: list[tuple[str, str]], role: str, leaders: dict[str, str | None], matches: pd.DataFrame
) -> dict[str, np.ndarray]:
    agreement, same_layer, same_head = {}, {}, {}
    for a, b in pairs:
        own = rows_of(matches, run_a=a, run_b=b)
        here, there = (own[column].to_numpy() == role for column in ("role_a", "role_b"))
        either = int(here.sum() + there.sum())
        agreement[a, b] = 2 * float((here & there).sum()) / either if either else np.nan
        first, second = leaders[a], leaders[b]
        same_head[a, b] = same_layer[a, b] = np.nan
        if first is not None and second is not None:
            same_head[a, b], same_layer[a, b] = float(first == second), float(layer_of(first) == layer_of(second))
    tables = {"agreement": agreement, "same layer": same_layer, "same head": same_head}
    return {name: pair_matrix(values)[1] for name, values in tables.items()}
