"""The causal trajectory: when does a part become necessary, and when does it only look right?

At every stored step and for every part,

    necessity   in-context accuracy of the intact model minus that without the part (ablations.py)
    recall      the part's recall probe (Section 5): does its matrix store the right pairs?

A part can look right long before anything depends on it (W_O2 is learned first and is of little use alone), and be
necessary before it looks right. `births` compares the two by the steps at which each curve changes level.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.errors import InputError
from induction_memory.interventions.ablations import INTACT, ablate
from induction_memory.interventions.replacements import Kind
from induction_memory.interventions.subjects import Steps, chosen_steps
from induction_memory.probes.emergence import change_point
from induction_memory.probes.tidy import table as probe_table
from induction_memory.task.sampler import Batch
from induction_memory.trajectory.trajectory import Trajectory

MEMORIES = ("W_K1", "W_K2", "W_O2")


def causal_trajectory(
    run: Any,
    batch: Batch | None = None,
    *,
    components: str | Sequence[str] = ("heads", *MEMORIES),
    kind: Kind | Sequence[Kind] = "mean",
    step: Steps = "all",
    seed: int = 0,
) -> pd.DataFrame:
    """One row a step, part and kind: necessity, accuracy with and without it, and recall where it has a probe.

    With several heads, the recall is that of the best.
    """
    if not isinstance(run, Trajectory):
        raise InputError(f"run: expected a trajectory, got {type(run).__name__}")
    steps = chosen_steps(run, step)
    ablated = ablate(run, batch, components=components, kind=kind, step=steps, seed=seed)
    intact = {row["step"]: row["in_context_accuracy"] for row in ablated.to_dict("records") if _is_intact(row)}
    recalls: dict[tuple[int, str], float] = {}
    names = [name for name in MEMORIES if name in set(ablated["component"])]
    for row in probe_table(run, names, steps=steps).to_dict("records") if names else []:
        key = (row["step"], row["probe"])
        recalls[key] = max(recalls.get(key, 0.0), row["value"])
    return pd.DataFrame(
        {
            "step": row["step"],
            "component": row["component"],
            "kind": row["kind"],
            "necessity": intact[row["step"]] - row["in_context_accuracy"],
            "intact": intact[row["step"]],
            "without": row["in_context_accuracy"],
            "without_se": row["in_context_accuracy_se"],
            "recall": recalls.get((row["step"], row["component"]), np.nan),
        }
        for row in ablated.to_dict("records")
        if not _is_intact(row)
    )


def _is_intact(row: dict[Any, Any]) -> bool:
    return row["component"] == INTACT


def births(table: pd.DataFrame) -> pd.DataFrame:
    """One row a part and kind: the step at which it looks right, that at which it becomes necessary, and the delay."""
    rows = []
    for component, kind in dict.fromkeys(zip(table["component"], table["kind"], strict=True)):
        part = table[(table["component"] == component) & (table["kind"] == kind)]
        steps, curves = np.asarray(part["step"]), [np.asarray(part[c], dtype=float) for c in ("recall", "necessity")]
        looks_right, necessary = (change_point(steps, curve)[0] for curve in curves)
        rows.append((component, kind, looks_right, necessary, necessary - looks_right))
    return pd.DataFrame(rows, columns=["component", "kind", "looks_right", "necessary", "delay"])
