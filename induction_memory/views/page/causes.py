"""The effect of ablating each component over training, how heads share the effect, and the role of each head.

Each component is replaced by its mean over sequences and positions (`ablate(kind="mean")`). The effect is the
difference to the intact model on the same sequences. Shares are Shapley values of the game in which every head is kept
or ablated (`heads.identify`, game "all"), as fractions of the total effect.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.heads.identification import identify
from induction_memory.interventions.ablations import ablate
from induction_memory.source.sources import Source
from induction_memory.task.batch import Batch
from induction_memory.views.page.pack import plain
from induction_memory.views.page.words import group_titles

OF_HEADS = ("heads", "shares", "shapley", "shapley_error", "roles", "agreement", "births")


def parts_of(source: Any) -> list[str]:
    """The components that the page ablates: heads, key and output matrices, feed-forwards."""
    model = getattr(source, "model_config", None)
    if model is None:
        return ["heads", "feed_forward"]
    matrices = [f"{kind}{layer}" for layer in range(1, model.n_layers + 1) for kind in ("W_K", "W_O")]
    last = [] if model.feed_forward == "none" else ["W_F"] if model.feed_forward == "linear" else ["feed_forward"]
    return ["heads", *matrices, *last]


def causes(source: Source, steps: Sequence[int], batch: Batch) -> tuple[dict[str, Any], dict[str, str]]:
    """Tables of ablations, shares and roles at some steps for the page, and the reasons for missing ones."""
    lost = ablate(source, batch, components=parts_of(source), kind="mean", step=steps)
    titles = group_titles(source.task, batch)
    kinds = ["loss"] if batch.soft else ["loss", "accuracy"]
    intact, cut = lost.loc[lost["component"] == "none"], lost.loc[lost["component"] != "none"]
    found: dict[str, Any] = {
        "steps": list(steps),
        "groups": titles,
        "kinds": kinds,
        "parts": list(cut["component"].unique()),
    }
    found |= {"intact": {}, "without": {}, "error": {}}
    for group in titles:
        for kind in kinds:
            name = f"{group}_{kind}"
            found["intact"][name] = plain(intact[name])
            found["without"][name] = _by_step(cut, name, steps)
            found["error"][name] = _by_step(cut, f"{name}_se", steps)
    if batch.soft:
        return found | {key: [] for key in OF_HEADS}, {"roles of heads": "no single output is right in this task"}
    heads = identify(source, step=steps, batch=batch)
    shares = heads.shares.loc[heads.shares["game"] == "all"]
    births = heads.births.loc[(heads.births["role"] != "none") & np.isfinite(heads.births["born"].astype(float))]
    found |= {
        "heads": list(shares["head"].unique()),
        "shares": _by_step(shares, "share", steps),
        "shapley": _by_step(shares, "shapley", steps),
        "shapley_error": _by_step(shares, "shapley_se", steps),
        "roles": heads.roles["role"].to_numpy(dtype=object).reshape(len(steps), -1).tolist(),
        "agreement": _by_step(heads.roles, "agreement", steps),
        "births": births.rename(columns={"born": "step"})[["head", "role", "step"]].to_dict("records"),
    }
    return found, {}


def _by_step(table: pd.DataFrame, name: str, steps: Sequence[int]) -> list[list[float | None]]:
    """One list per step, with one number per component in the order of the table."""
    return plain(table[name].to_numpy(dtype=float).reshape(len(steps), -1))
