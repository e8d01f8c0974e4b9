"""The curves of a run: loss and accuracy as training recorded them, recall and KL as probes measure them.

Each curve has the panel in which it is drawn, the memory whose colour it has (if any), and the numbers of the
DataFrame. Births are the change points of the recalls, with their confidence intervals (`probes.change_points`).
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from induction_memory import probes
from induction_memory.task.batch import Batch
from induction_memory.task.predictors import describe
from induction_memory.task.predictors import phases as named_phases
from induction_memory.task.protocol import offered
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.views.page import words

RECALL = ("W_O2", "W_K2", "W_K1", "W_K1_first64")
DISTANCE = {
    "kl_uniform": "uniform",
    "kl_unigram": "unigram",
    "kl_bigram": "bigram",
    "kl_bayes": "Bayes-optimal",
}
"""References of in-context bigrams; for other tasks the predictors are shown."""
MOST_POINTS = 1200  # drawn of a recorded curve; of a longer curve only every n-th row is drawn
CAP = 1.5  # the axis of distances ends at this many times the median distance of the first step


def curves(run: Trajectory, batch: Batch, leaders: Mapping[str, str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Every curve, and the reason for each probe that this run does not have.

    `leaders` names for each memory the head that the legend shows (`tables.clearest`).
    """
    metrics = run.metrics
    every = -(-len(metrics) // MOST_POINTS) if len(metrics) else 1
    drawn = metrics.iloc[::every]
    found = [
        _curve(group, name, "", label, "", drawn["step"].to_numpy(), drawn[name].to_numpy())
        for group, names in recorded(run, batch).items()
        for name, label in names.items()
        if name in drawn and drawn[name].notna().any()
    ]
    recall = probes.table(run, RECALL)
    for name in RECALL:
        label, memory = name.replace("_first64", ", first 64"), name.removesuffix("_first64")
        for head in recall.loc[recall["probe"] == name, "head"].unique():
            curve = _curve("recall", name, str(head), label, memory, *_values(recall, name, head))
            found.append(curve | {"leads": head == leaders[memory]})
    globally = offered(run.task, "unigram") is not None and offered(run.task, "bigram") is not None
    distance = probes.table(run, list(DISTANCE) if globally else "predictors", batch=batch)
    labels = {name: DISTANCE.get(name) or name.removeprefix("kl_to_").replace("_", " ") for name in distance["probe"]}
    for name, label in labels.items():
        found.append(_curve("kl", name, "", label, "", *_values(distance, name)))
    skipped = recall.attrs["skipped"] | distance.attrs["skipped"]
    if run.model_config.feed_forward == "linear":
        stored = probes.table(run, ["W_F_kl"])
        found.append(_curve("kl", "W_F_kl", "", "W_F to bigram", "W_F", *_values(stored, "W_F_kl")))
    return [curve for curve in found if curve["steps"]], skipped


def recorded(run: Trajectory, batch: Batch) -> dict[str, dict[str, str]]:
    """Recorded curves by panel: column -> label."""
    found: dict[str, dict[str, str]] = {"loss": {}, "accuracy": {}}
    for name in (batch.main, *batch.groups):
        label = words.recorded_label(name, batch)
        found["loss"][f"loss_{name}"] = label
        if name != "first_occurrence":
            found["accuracy"][f"accuracy_{name}"] = label
    other = run.config.train.out_of_distribution
    of_main = words.recorded_label(batch.main, batch)
    found["accuracy"]["out_of_distribution_accuracy"] = (
        f"{of_main}, other outputs" if hasattr(run.task, "output_part") else f"{of_main}, {other}"
    )
    return found


def phases(curves: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """The phases that the distances to a task's predictors show, in words, and where the axis of distances ends."""
    drawn = {c["label"]: c for c in curves if c["group"] == "kl" and c["name"].startswith("kl_to_")}
    if not drawn:
        return None, {}
    steps = next(iter(drawn.values()))["steps"]
    values = np.array([curve["values"] for curve in drawn.values()])
    found = named_phases(steps, dict(zip(drawn, values, strict=True)))
    spans = [{"predictor": phase.predictor, "first": phase.first, "last": phase.last} for phase in found]
    top = max(CAP * float(np.median(values[:, 0])), 1.1 * float(values.min(0).max()))
    return {"spans": spans, "text": f"The model is {describe(found)}."}, {"kl": min(top, float(values.max()))}


def _values(table: pd.DataFrame, name: str, head: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a probe, for one head if it is named."""
    chosen = (table["probe"] == name) & (True if head is None else table["head"] == head)
    return table.loc[chosen, "step"].to_numpy(), table.loc[chosen, "value"].to_numpy()


def _curve(
    group: str, name: str, head: str, label: str, memory: str, steps: np.ndarray, values: np.ndarray
) -> dict[str, Any]:
    finite = np.isfinite(values)
    return {
        "group": group,
        "name": name,
        "head": head,
        "label": label,
        "memory": memory,
        "leads": True,
        "steps": steps[finite].astype(int).tolist(),
        "values": values[finite].astype(float).tolist(),
    }


def births(run: Trajectory, leaders: Mapping[str, str]) -> list[dict[str, Any]]:
    """When each memory was born: the change point of the recall of its leading head."""
    names = [name for name in ("W_O2", "W_K2", "W_K1") if name in leaders]
    if not names or len(run.steps) < 3:
        return []
    table: list[dict[str, Any]] = probes.change_points(run, names).to_dict("records")
    found = []
    for row in table:
        if row["head"] != leaders[row["probe"]]:
            continue
        if np.isfinite([row["change"], row["low"], row["high"]]).all() and row["after"] > row["before"]:
            found.append({key: row[key] for key in ("head", "change", "low", "high", "before", "after")})
            found[-1]["memory"] = row["probe"]
    return sorted(found, key=itemgetter("change"))
