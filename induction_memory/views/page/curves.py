"""The curves of a run: loss and accuracy recorded in training, recall and KL measured by probes.

A source without a task has loss and accuracy measured by probes, and the standard head scores.

Each curve has a panel, the memory whose colour it has (if any), and the numbers of the DataFrame. Births are the change
points of the recalls, with confidence intervals (`probes.change_points`).
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from induction_memory import probes
from induction_memory.task.batch import Batch
from induction_memory.task.predictors import describe
from induction_memory.task.predictors import phases as named_phases
from induction_memory.task.protocol import offered
from induction_memory.views.page import words

RECALL = ("W_O2", "W_K2", "W_K1", "W_K1_first64")
DISTANCE = {
    "kl_uniform": "uniform",
    "kl_unigram": "unigram",
    "kl_bigram": "bigram",
    "kl_bayes": "Bayes-optimal",
}
"""References of in-context bigrams; for other tasks the predictors are shown."""
PREDICTION = {
    "loss_in_context": "second half",
    "loss": "all positions",
    "accuracy_in_context": "second half",
    "accuracy": "all positions",
}
"""Probes of a source without a task, on random tokens repeated once."""
GROUPS = ("loss", "accuracy", "previous", "induction")
NAMED = 4
MOST_POINTS = 1200  # most points of a recorded curve; longer curves show every n-th row
CAP = 1.5  # the axis of distances ends at this many times the median distance of the first step


def curves(
    source: Any, batch: Batch, leaders: Mapping[str, str], n_layers: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Every curve, and the reasons for skipped probes.

    `leaders` names for each memory the head that the legend shows (`tables.clearest`).
    """
    if source.task is None:
        found, unknown = measured(source, batch, n_layers), "the task is not known"
        left_out = ("loss and accuracy in training", "recall", "distances to predictors")
        skipped: dict[str, str] = dict.fromkeys(left_out, unknown)
    else:
        found, skipped = recorded(source, batch), {}
        recall = probes.table(source, RECALL)
        by_head: Any = recall.groupby(["probe", "head"], sort=False)
        for (name, head), rows in by_head:
            label, memory = name.replace("_first64", ", first 64"), name.removesuffix("_first64")
            found.append(_curve("recall", name, label, rows, head=head, memory=memory, leads=head == leaders[memory]))
        globally = offered(source.task, "unigram") is not None and offered(source.task, "bigram") is not None
        distance = probes.table(source, list(DISTANCE) if globally else "predictors", batch=batch)
        for name, rows in distance.groupby("probe", sort=False):
            label = DISTANCE.get(str(name)) or str(name).removeprefix("kl_to_").replace("_", " ")
            found.append(_curve("kl", name, label, rows))
        skipped = recall.attrs["skipped"] | distance.attrs["skipped"]
        if source.model_config.feed_forward == "linear":
            found.append(_curve("kl", "W_F_kl", "W_F to bigram", probes.table(source, ["W_F_kl"]), memory="W_F"))
    return [curve for curve in found if curve["steps"]], skipped


def recorded(run: Any, batch: Batch) -> list[dict[str, Any]]:
    """Loss and accuracy as training recorded them."""
    metrics = run.metrics
    drawn = metrics.iloc[:: max(1, -(-len(metrics) // MOST_POINTS))]
    labels, named = words.wording(run.task, batch)["recorded"], []
    for group in (batch.main, *batch.groups):
        label = labels.get(group, group)
        named.append(("loss", f"loss_{group}", label))
        if group != "first_occurrence":
            named.append(("accuracy", f"accuracy_{group}", label))
    other = "other outputs" if hasattr(run.task, "output_part") else run.config.train.out_of_distribution
    of_main = f"{labels.get(batch.main, batch.main)}, {other}"
    named.append(("accuracy", "out_of_distribution_accuracy", of_main))
    found = []
    for group, name, label in sorted(dict.fromkeys(named), key=itemgetter(0), reverse=True):  # losses first
        if name in drawn:
            found.append(_curve(group, name, label, drawn.rename(columns={name: "value"})))
    return found


def measured(source: Any, batch: Batch, n_layers: int) -> list[dict[str, Any]]:
    """Loss, accuracy and the standard scores of heads; the legend names the `NAMED` heads with the highest scores."""
    names = {name: (name.partition("_")[0], label) for name, label in PREDICTION.items()}
    for layer in range(1, n_layers + 1):
        names |= {f"repeated_previous{layer}": ("previous", ""), f"repeated_induction{layer}": ("induction", "")}
    by_head: Any = probes.table(source, list(names), batch=batch).groupby(["probe", "head"], sort=False)
    found = []
    for (name, head), rows in by_head:
        group, label = names[name]
        found.append(_curve(group, name, label, rows, head=head))
    for group in ("previous", "induction"):
        own = sorted((one for one in found if one["group"] == group), key=lambda one: one["values"][-1:], reverse=True)
        for one in own[NAMED:]:
            one["leads"] = False
    return sorted(found, key=lambda one: (GROUPS.index(one["group"]), not one["leads"]))


def phases(curves: list[dict[str, Any]]) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """The phases of training, as spans and as a sentence; and the upper end of the axis of divergences."""
    drawn = {c["label"]: c for c in curves if c["group"] == "kl" and c["name"].startswith("kl_to_")}
    if not drawn:
        return None, {}
    steps = next(iter(drawn.values()))["steps"]
    values = np.array([curve["values"] for curve in drawn.values()])
    found = named_phases(steps, dict(zip(drawn, values, strict=True)))
    spans = [{"predictor": phase.predictor, "first": phase.first, "last": phase.last} for phase in found]
    top = max(CAP * float(np.median(values[:, 0])), 1.1 * float(values.min(0).max()))
    return {"spans": spans, "text": f"The model is {describe(found)}."}, {"kl": min(top, float(values.max()))}


def _curve(
    group: str, name: Any, label: str, rows: Any, *, head: Any = "", memory: str = "", leads: bool = True
) -> dict[str, Any]:
    """A curve of the finite values of a table with the columns step and value."""
    values = rows["value"].to_numpy(dtype=float)
    finite = np.isfinite(values)
    return {
        "group": group,
        "name": str(name),
        "head": str(head),
        "label": label,
        "memory": memory,
        "leads": bool(leads),
        "steps": rows["step"].to_numpy()[finite].astype(int).tolist(),
        "values": values[finite].tolist(),
    }


def births(source: Any, leaders: Mapping[str, str]) -> list[dict[str, Any]]:
    """The birth of each memory: the change point of the recall of its leading head."""
    names = [name for name in ("W_O2", "W_K2", "W_K1") if name in leaders]
    if not names or len(source.steps) < 3:
        return []
    found = probes.change_points(source, names).rename(columns={"probe": "memory"})
    known = np.isfinite(found[["change", "change_low", "change_high"]]).all(axis=1) & (found["after"] > found["before"])
    leading = found["head"] == [leaders[memory] for memory in found["memory"]]
    born = found.loc[known & leading].sort_values("change", kind="stable")
    return born[["head", "change", "change_low", "change_high", "before", "after", "memory"]].to_dict("records")
