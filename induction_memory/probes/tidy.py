"""Tables of probes.

    table(run)                       the paper's recall probes at every step
    table(run, ["W_O2", "attention"], steps=[0, 300])     probes, or whole families, at some steps
    table(run, ["W_O2", my_probe])   a function of one's own beside them (registry.py)
    table(run, "all")                everything
    table(series, ["entropy1"])      one checkpoint of a series after another; the standard head scores by default

A table has the columns step, probe, head and value, and one row per observation. `head` is `L1H1` for a head,
`L1H3>L2H1` for a pair, "" for a probe that has no heads. A probe that the model cannot have is left out, and
`table.attrs["skipped"]` says why: name -> reason.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from induction_memory.errors import require
from induction_memory.probes.measuring import FAMILIES, Curves, Names, Progress, measure, resolve
from induction_memory.source.sources import SEQUENCES, Steps, Subject, subject
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task, to_dict
from induction_memory.trajectory.kept_results import key_of
from induction_memory.trajectory.series import joined


def table(
    source: Any,
    names: Names = None,
    *,
    steps: Steps = "all",
    batch: Batch | None = None,
    task: Task | None = None,
    cached: bool = True,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Probes of a trajectory, a model or stacked weights: step, probe, head, value.

    `names` are probes, families or functions. None stands for the paper's recall probes, or for what the task allows
    without them (distances to its predictors, else loss and accuracy), "all" for every probe. Activation
    probes run on `batch`, or on one sampled from the task with the run's evaluation seed. A trajectory's results are
    kept beside it unless `cached` is False. `progress(done, total)` is called after each forward pass. An interruption
    keeps the steps that are done. A series runs on `batch`, or on random tokens repeated once.

    >>> table("induction-small", ["W_O2", "norm_W_O2"], steps=[0, 600]).round(2)
       step      probe  head  value
    0     0       W_O2  L2H1   0.00
    1   600       W_O2  L2H1   1.00
    2     0  norm_W_O2  L2H1   6.55
    3   600  norm_W_O2  L2H1  25.36
    """
    opened = subject(source, step=steps, batch=batch, task=task, sequences=SEQUENCES, field="steps")
    if opened.series is not None:
        return _of_series(opened, names, opened.batch, task)
    probes = resolve(names, opened)
    curves, skipped = measure(opened, probes, batch=batch, task=task, cached=cached, progress=progress)
    values = [curve.values for curve in curves.values()]
    tidy = pd.DataFrame(
        {
            "step": _joined([np.repeat(opened.steps[: len(c.values)], len(c.heads)) for c in curves.values()], int),
            "probe": np.repeat(list(curves), [v.size for v in values]) if curves else [],
            "head": [head for curve in curves.values() for head in curve.heads * len(curve.values)],
            "value": _joined([v.ravel() for v in values], float),
        }
    )
    return _attributed(tidy, skipped)


def _of_series(opened: Subject, names: Names, batch: Batch, task: Task | None) -> pd.DataFrame:
    """The table of a series. If the series keeps results, the table of each checkpoint is kept on the disk."""
    assert opened.series is not None

    def measure(_: int, model: nn.Module) -> dict[str, pd.DataFrame]:
        return {"table": table(model, _standard(model) if names is None else names, batch=batch, task=task)}

    chosen = [] if names is None else resolve(names, opened)
    own = {"probes": [probe.name for probe in chosen], "batch": batch, "task": task and to_dict(task)}
    key = key_of(own) if all(probe.family in FAMILIES for probe in chosen) else None
    return joined([(step, tables["table"]) for step, tables in opened.series.results(measure, key=key)])


def _standard(model: Any) -> list[str]:
    """The head scores on repeated random tokens, of every layer."""
    layers = range(1, model.cfg.n_layers + 1)
    return [f"{kind}{layer}" for kind in ("repeated_previous", "repeated_induction") for layer in layers]


def wide(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per step, one column per probe.

    With several heads one column each, `W_K1[L1H2]`, and their spread: `W_K1_min`, `W_K1_mean`, `W_K1_max`.

    >>> wide(table("induction-small", ["W_O2", "norm_W_O2"])).loc[600].round(2).to_dict()
    {'W_O2': 1.0, 'norm_W_O2': 25.36}
    """
    columns: dict[str, Any] = {}
    for probe, rows in tidy.groupby("probe", sort=False):
        by_head = rows.pivot_table(index="step", columns="head", values="value", sort=False, dropna=False)
        columns |= _columns(str(probe), Curves(by_head.to_numpy(), list(by_head.columns)))
    steps = pd.Index(tidy["step"].unique(), name="step")
    return _attributed(pd.DataFrame(columns, index=steps), tidy.attrs.get("skipped", {}))


def recall(
    source: Any,
    names: Iterable[str] | None = None,
    *,
    steps: Steps = "all",
    task: Task | None = None,
    cached: bool = True,
) -> pd.DataFrame:
    """The memory recall probes, one row per step and one column per probe (`wide`); the paper's by default.

    >>> recall("induction-small", ["W_O2", "W_K2"]).loc[100].round(2).to_dict()
    {'W_O2': 0.95, 'W_K2': 0.29}
    """
    opened = subject(source, step=steps, task=task, sequences=SEQUENCES, field="steps")
    reads = "a run, a model or weights (probes.token_recall reads a series of checkpoints)"
    require(opened.series is None, "source", reads, "a series")
    curves, skipped = measure(opened, resolve(names, opened), task=task, cached=cached)
    columns = {column: values for name, c in curves.items() for column, values in _columns(name, c).items()}
    return _attributed(pd.DataFrame(columns, index=pd.Index(opened.steps, name="step")), skipped)


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.array([], kind)


def _columns(probe: str, curves: Curves) -> dict[str, np.ndarray]:
    if len(curves.heads) == 1:
        return {probe: curves.values[:, 0]}
    heads = {f"{probe}[{head}]": curves.values[:, h] for h, head in enumerate(curves.heads)}
    return heads | {f"{probe}_{name}": getattr(curves.values, name)(axis=1) for name in ("min", "mean", "max")}


def _attributed(table: pd.DataFrame, skipped: dict[str, str]) -> pd.DataFrame:
    table.attrs["skipped"] = skipped
    return table
