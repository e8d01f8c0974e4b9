"""The history of roles over training: births, changes, and when the sharing is decided.

born      the first step from which a head keeps its last role to the end; nan if only one step was examined
emerged   the first step from which the effect of a role's route is at least half of its final effect
decided   the first step from which the heads' shares s_t of that route stay near the last ones,
          1/2 sum |s_t - s_T| <= NEAR (shares of the heads with positive values, summing to one)
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.heads.selection import listed, rows_of
from induction_memory.heads.votes import ROLES, ROUTE_OF
from induction_memory.memory.births import first_lasting

NEAR = 0.1


def births(roles: pd.DataFrame) -> pd.DataFrame:
    """One row per run and head that ends with a role: run, head, role, born."""
    rows = []
    for run, head, steps, held in _histories(roles):
        if held[-1] in ROLES:
            born = float(first_lasting(held == held[-1], steps)) if len(steps) > 1 else np.nan
            rows.append((run, head, held[-1], born))
    return pd.DataFrame(rows, columns=["run", "head", "role", "born"])


def changes(roles: pd.DataFrame) -> pd.DataFrame:
    """One row per change of role: run, head, step (the first with the new role), before, after."""
    rows = []
    for run, head, steps, held in _histories(roles):
        for i in np.flatnonzero(held[1:] != held[:-1]):
            rows.append((run, head, int(steps[i + 1]), held[i], held[i + 1]))
    return pd.DataFrame(rows, columns=["run", "head", "step", "before", "after"])


def decisions(shares: pd.DataFrame) -> pd.DataFrame:
    """One row per run and role, in the layer with the most work at the end: run, role, layer, emerged, decided."""
    rows = []
    for run in listed(shares, "run"):
        for role in ROLES:
            own = rows_of(shares, run=run, game=ROUTE_OF[role])
            work = {layer: work_over_steps(rows_of(own, layer=layer)) for layer in listed(own, "layer")}
            if not work:
                continue
            layer = max(work, key=lambda one: work[one][1][-1].sum())
            steps, parts = work[layer]
            total = parts.sum(1)
            emerged = decided = np.nan
            if total[-1] > 0:
                emerged = float(first_lasting(total >= total[-1] / 2, steps))
                distance = 0.5 * np.abs(normalised(parts) - normalised(parts[-1:])).sum(1)
                decided = float(first_lasting(distance <= NEAR, steps))
            rows.append((run, role, layer, emerged, decided))
    return pd.DataFrame(rows, columns=["run", "role", "layer", "emerged", "decided"])


def work_over_steps(shares: pd.DataFrame) -> tuple[Int[np.ndarray, " step"], Float[np.ndarray, "step head"]]:
    """The steps, and the heads' Shapley values at each, of one run, game and layer."""
    steps, heads = listed(shares, "step"), listed(shares, "head")
    return np.array(steps), shares["shapley"].to_numpy().reshape(len(steps), len(heads))


def normalised(parts: Float[np.ndarray, "step head"]) -> Float[np.ndarray, "step head"]:
    """Shares of the heads with positive values, summing to one; zeros where there are none."""
    helping = np.clip(parts, 0, None)
    total = helping.sum(1, keepdims=True)
    return np.divide(helping, total, out=np.zeros_like(helping), where=total > 0)


def _histories(roles: pd.DataFrame) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Run, head, steps, and the role at each step."""
    for run in listed(roles, "run"):
        own = rows_of(roles, run=run)
        for head in listed(own, "head"):
            own_rows = rows_of(own, head=head)
            yield run, head, own_rows["step"].to_numpy(), own_rows["role"].to_numpy()
