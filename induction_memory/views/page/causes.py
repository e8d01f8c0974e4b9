"""What is lost without each part over training, how heads share the effect, and which role each head has.

Each part is replaced by its mean over sequences and positions (`ablate(kind="mean")`). The loss is the difference to
the intact model on the same sequences. Shares are Shapley values of the game in which every head may be kept or ablated
(`heads.identify`, game "all"), as fractions of the total effect.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from induction_memory import heads as heads_library
from induction_memory.interventions.ablations import ablate
from induction_memory.model.config import AnyModel
from induction_memory.task.batch import Batch
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.views.page.words import group_titles

OF_HEADS = ("heads", "shares", "shapley", "shapley_error", "roles", "confidence", "births")


def parts_of(model: AnyModel) -> list[str]:
    """The parts that the page takes away: heads, key and output matrices, feed-forwards."""
    matrices = [f"{kind}{layer}" for layer in range(1, model.n_layers + 1) for kind in ("W_K", "W_O")]
    last = [] if model.feed_forward == "none" else ["W_F"] if model.feed_forward == "linear" else ["feed_forward"]
    return ["heads", *matrices, *last]


def causes(run: Trajectory, steps: Sequence[int], batch: Batch) -> tuple[dict[str, Any], dict[str, str]]:
    """Tables of ablations, shares and roles at some steps, as the page reads them, and reasons for what is left out."""
    lost = ablate(run, batch, components=parts_of(run.model_config), kind="mean", step=list(steps))
    titles = group_titles(batch)
    kinds = ["loss"] if batch.soft else ["loss", "accuracy"]
    measures = [f"{group}_{kind}" for group in titles for kind in kinds]
    intact, cut = lost.loc[lost["component"] == "none"], lost.loc[lost["component"] != "none"]
    found = {
        "steps": list(steps),
        "groups": titles,
        "kinds": kinds,
        "parts": list(dict.fromkeys(cut["component"])),
        "intact": {name: _numbers(intact[name]) for name in measures},
        "without": {name: _by_step(cut, name) for name in measures},
        "error": {name: _by_step(cut, f"{name}_se") for name in measures},
    }
    if batch.soft:
        return found | {key: [] for key in OF_HEADS}, {"roles of heads": "no single output is right in this task"}
    return found | _heads(run, steps, batch), {}


def _heads(run: Trajectory, steps: Sequence[int], batch: Batch) -> dict[str, Any]:
    """Shares and roles."""
    found = heads_library.identify(run, step=list(steps), batch=batch)
    shares = found.shares.loc[found.shares["game"] == "all"]
    return {
        "heads": list(dict.fromkeys(shares["head"])),
        "shares": _by_step(shares, "share"),
        "shapley": _by_step(shares, "shapley"),
        "shapley_error": _by_step(shares, "shapley_se"),
        "roles": [list(rows["role"]) for _, rows in found.roles.groupby("step", sort=False)],
        "confidence": _by_step(found.roles, "confidence"),
        "births": [
            {"head": row["head"], "role": row["role"], "step": float(row["born"])}
            for row in found.births.to_dict("records")
            if row["role"] != "none" and np.isfinite(row["born"])
        ],
    }


def _by_step(table: pd.DataFrame, name: str) -> list[list[float | None]]:
    """One list per step, one number per part in the order of the table."""
    return [_numbers(rows[name]) for _, rows in table.groupby("step", sort=False)]


def _numbers(values: pd.Series) -> list[float | None]:
    """The values as JSON has them: None where a number is not finite."""
    return values.astype(float).astype(object).where(np.isfinite(values), None).tolist()
