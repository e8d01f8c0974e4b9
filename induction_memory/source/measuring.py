"""The one loop of every analysis over the steps of a source.

A measure is a function of an `At` (a step with its model, runner, weights, sequences and task; several steps at once
for measures of stacked weights). It returns a table, a mapping from names to tables, or a mapping from names to numbers
(one row). The loop joins the tables, adds a column `step` if the source has steps, keeps each step's result at once,
shows progress, and after an interruption returns the completed steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from induction_memory.errors import StorageError, require
from induction_memory.source.elsewhere import measure_elsewhere
from induction_memory.source.sources import At, Selection, Sequences, select
from induction_memory.source.store import Store, code, key_of
from induction_memory.terminal import Progress, keeping, track
from induction_memory.trajectory.search import Steps


def measure(
    source: Any,
    what: "Callable[[At], Any]",
    *,
    step: "Steps" = "all",
    batch: "Sequences" = None,
    task: Any = None,
    sequences: int | None = None,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """The table of a function's results at each step of a source: a table per step, or a mapping of numbers for one
    row.

    The function receives the step as an `At`: `at.step`, `at.model` (a TransformerLens model), `at.runner`, `at.stack`
    (the weights as memories), `at.batch` and `at.task`. A model of a series must not be used after it has returned.
    The column `step` is the step that was measured, also if a table of yours has one.
    Without `batch`, `sequences` are drawn from the task; without a task they are random tokens repeated once.
    `progress` is None for a line after two seconds, False for none, or a function of (done, total).

    >>> measure("induction-small", lambda at: {"norm": at.model.W_O[1].norm().item()}, step=[0, 600]).round(2)
       step   norm
    0     0   6.55
    1   600  25.36
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=sequences, progress=progress)

    def table(at: At) -> dict[str, pd.DataFrame]:
        found = _as_table(what(at))
        return {"table": found.drop(columns="step", errors="ignore") if chosen.source.has_steps else found}

    return over_steps(chosen, table)["table"]


def over_steps(
    chosen: Selection,
    what: Callable[[At], Mapping[str, pd.DataFrame]],
    *,
    settings: Mapping[str, Any] | None = None,
    size: int = 1,
) -> dict[str, pd.DataFrame]:
    """The tables that `what` returns at each step, joined by name.

    `settings` are everything that the result depends on besides the step and the task; with them, the tables of each
    step are kept on the disk. With a `size` above 1, a source that stacks weights passes several steps at once, and the
    measure adds the column `step` itself.
    """
    steps, keep = chosen.steps.tolist(), chosen.source.keep
    key = None if settings is None or keep is None else key_of({**settings, "task": chosen.task, "via": chosen.via})
    store = None if key is None or keep is None else Store(keep)
    keys, done, missing = dict[int, str](), list[tuple[list[int], Mapping[str, pd.DataFrame]]](), list[int]()
    for one in steps:
        found = None
        if store is not None:
            keys[one] = f"{key}\n{chosen.source.identity(one)}\n{code()}"
            found = store.get(keys[one])
        if found is None:
            missing.append(one)
        else:
            done.append(([one], found))
    if chosen.engine is not None and settings is not None:
        allowed = "a run or a series on the disk, and measures of this package"
        require(store is not None, "engine", allowed, "what keeps no results")
        if missing:
            measure_elsewhere(chosen, what, {one: keys[one] for one in missing})
        for one in missing:
            found = None if store is None else store.get(keys[one])
            if found is None:
                raise StorageError(f"{keep}: expected the results of step {one} to be kept there, got none")
            done.append(([one], found))
        missing = []
    parts = max(1, -(-len(missing) // size))
    groups = chosen.in_turn(missing if steps else None, size)
    turns = track(groups, "steps", parts, progress=chosen.progress, before=len(done))
    with keeping(done, "steps"), closing(turns):
        for at in turns:
            tables = dict(what(at))
            if store is not None:
                store.put(keys[at.step], tables)
            done.append((at.steps, tables))
    require(len(done) > 0, "source", "one or more steps", "none")
    done.sort(key=itemgetter(0))
    return {name: _joined(chosen, done, name) for name in done[0][1]}


def _joined(
    chosen: Selection, parts: Sequence[tuple[Sequence[int], Mapping[str, pd.DataFrame]]], name: str
) -> pd.DataFrame:
    """The tables of all steps under each name, joined; empty ones are left out, since their columns have no types."""
    filled, table = list[pd.DataFrame](), pd.DataFrame()
    for steps, tables in parts:
        table = tables[name]
        if chosen.source.has_steps and "step" not in table:
            table.insert(0, "step", steps[0])
        if len(table):
            filled.append(table)
    whole = pd.concat(filled, ignore_index=True) if len(filled) > 1 else (filled or [table])[0].reset_index(drop=True)
    whole.attrs = dict(table.attrs)
    if chosen.given is None:
        whole.attrs["sequences"] = chosen.drawn
    return whole


def _as_table(found: Any) -> pd.DataFrame:
    """The result of a measure as a table."""
    if isinstance(found, Mapping):
        row = {name: _as_number(name, value) for name, value in found.items()}
        return pd.DataFrame([row])
    require(isinstance(found, pd.DataFrame), "what", "a table, or numbers by name, from it", type(found).__name__)
    return found


def _as_number(name: Any, value: Any) -> Any:
    """A tensor or an array of one number as this number, so that its column has a type; other values as they are."""
    if isinstance(value, Tensor | np.ndarray):
        one = "one number (or a table from it)"
        require(math.prod(value.shape) == 1, f"what: {name}", one, f"an array of shape {tuple(value.shape)}")
        return value.item()
    return value
