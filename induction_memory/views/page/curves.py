"""The curves of a run: loss and accuracy as training recorded them, recall and KL as probes measure them.

Each curve names the group it is drawn in, the memory whose colour it has (if any), and its numbers as the DataFrame
has them. Births are the change points of the recalls, with their confidence intervals (`probes.change_points`).
"""

from typing import Any

import numpy as np
import pandas as pd

from induction_memory import probes
from induction_memory.task.sampler import Batch
from induction_memory.trajectory.trajectory import Trajectory

RECORDED = {
    "loss": {
        "loss_in_context": "in context",
        "loss_global": "elsewhere",
        "loss_first_occurrence": "first occurrence of a trigger",
    },
    "accuracy": {
        "accuracy_in_context": "in context",
        "accuracy_global": "elsewhere",
        "out_of_distribution_accuracy": "in context, other outputs",
    },
}
RECALL = ("W_O2", "W_K2", "W_K1", "W_K1_first64")
DISTANCE = {
    "kl_uniform": "uniform",
    "kl_unigram": "unigram",
    "kl_bigram": "bigram",
    "kl_bayes": "Bayes-optimal",
}
MOST_POINTS = 1200  # of a recorded curve; of a longer one every n-th row is drawn


def curves(run: Trajectory, batch: Batch) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Every curve, and the reason for each probe that this run does not have."""
    metrics = run.metrics
    every = -(-len(metrics) // MOST_POINTS) if len(metrics) else 1
    drawn = metrics.iloc[::every]
    found = [
        _curve(group, name, "", label, "", drawn[["step", name]].dropna().rename(columns={name: "value"}))
        for group, names in RECORDED.items()
        for name, label in names.items()
        if name in drawn and drawn[name].notna().any()
    ]
    recall, distance = probes.table(run, RECALL), probes.table(run, list(DISTANCE), batch=batch)
    for name in RECALL:
        for head, rows in recall[recall["probe"] == name].groupby("head", sort=False):
            label = name.replace("_first64", ", first 64")
            found.append(_curve("recall", name, str(head), label, name.removesuffix("_first64"), rows))
    for name, label in DISTANCE.items():
        found.append(_curve("kl", name, "", label, "", distance[distance["probe"] == name]))
    skipped = recall.attrs["skipped"] | distance.attrs["skipped"]
    if run.model_config.feed_forward == "linear":
        stored = probes.table(run, ["W_F_kl"])
        found.append(_curve("kl", "W_F_kl", "", "W_F to bigram", "W_F", stored))
    return [curve for curve in found if curve["steps"]], skipped


def _curve(group: str, name: str, head: str, label: str, memory: str, rows: pd.DataFrame) -> dict[str, Any]:
    finite = rows[np.isfinite(rows["value"].to_numpy())]
    return {
        "group": group,
        "name": name,
        "head": head,
        "label": label,
        "memory": memory,
        "steps": finite["step"].astype(int).tolist(),
        "values": finite["value"].astype(float).tolist(),
    }


def births(run: Trajectory, recalls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """When each memory was born: the change point of its recall, for the head that recalls most at the end."""
    names = [name for name in ("W_O2", "W_K2", "W_K1") if any(c["name"] == name for c in recalls)]
    if not names or len(run.steps) < 3:
        return []
    table = probes.change_points(run, names)
    found = []
    for name in names:
        best = max((c for c in recalls if c["name"] == name), key=lambda c: c["values"][-1])
        (row,) = table[(table["probe"] == name) & (table["head"] == best["head"])].to_dict("records")
        if np.isfinite([row["change"], row["low"], row["high"]]).all() and row["after"] > row["before"]:
            numbers = {key: float(row[key]) for key in ("change", "low", "high", "before", "after")}
            found.append({"memory": name, "head": best["head"]} | numbers)
    return sorted(found, key=lambda birth: birth["change"])
