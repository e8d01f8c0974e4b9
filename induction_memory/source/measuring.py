"""The one loop: every analysis goes through the steps of a source here.

A measure is a function of an `At` (a step with its model, runner, weights, sequences and task; several steps at once
for measures of stacked weights). It returns a table, several by name, or numbers by name for a table of one row. The
loop joins the tables, puts the step in front where the source has steps, keeps each step's result as soon as it is
there, shows progress, and returns what is complete after an interruption.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from induction_memory.errors import require
from induction_memory.source.sources import At, Selection, Sequences, select
from induction_memory.source.store import Store, code, key_of
from induction_memory.terminal import keeping, track
from induction_memory.trajectory.search import Steps

Progress = Callable[[int, int], object]
"""Called after each step with the numbers of done and of all steps."""


def measure(
    source: Any,
    what: Callable[[At], Any],
    *,
    step: Steps = "all",
    batch: Sequences = None,
    task: Any = None,
    sequences: int | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """A table of what a function says of each step of a source: a table, or numbers by name for one row.

    The function receives the step as an `At`: `at.step`, `at.model` (a TransformerLens model), `at.runner`, `at.stack`
    (the weights as memories), `at.batch` and `at.task`. A model of a series must not be used after it has returned.
    Without `batch`, `sequences` are drawn from the task; without a task they are random tokens repeated once.

    >>> measure("induction-small", lambda at: {"norm": at.model.W_O[1].norm().item()}, step=[0, 600]).round(2)
       step   norm
    0     0   6.55
    1   600  25.36
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=sequences)
    return over_steps(chosen, lambda at: {"table": _as_table(what(at))}, progress=progress)["table"]


def over_steps(
    chosen: Selection,
    what: Callable[[At], Mapping[str, pd.DataFrame]],
    *,
    settings: Mapping[str, Any] | None = None,
    size: int = 1,
    progress: Progress | None = None,
) -> dict[str, pd.DataFrame]:
    """The tables that `what` makes of each step, joined by name.

    With `settings`, all that the result depends on beside the step and the task, the tables of each step are kept on
    the disk. With a `size` above 1, a source that stacks weights hands over several steps at once; then the measure
    itself says the steps in its tables.
    """
    steps, keep = chosen.steps.tolist(), chosen.source.keep
    key = None if settings is None or keep is None else key_of({**settings, "task": chosen.task, "via": chosen.via})
    store = None if key is None or keep is None else Store(keep)
    keys = {} if store is None else {one: f"{key}\n{chosen.source.identity(one)}\n{code()}" for one in steps}
    known = {} if store is None else {one: found for one in steps if (found := store.get(keys[one])) is not None}
    done = [([one], tables) for one, tables in known.items()]
    missing = [one for one in steps if one not in known]
    total = -(-len(missing) // size)
    with keeping(done, "steps"):
        for at in track(chosen.in_turn(missing, size), "steps", total) if steps else chosen.in_turn(size=size):
            tables = dict(what(at))
            if store is not None:
                store.put(keys[at.step], tables)
            done.append((at.steps, tables))
            if progress is not None:
                progress(len(done), max(len(done), len(known) + total))
    require(len(done) > 0, "source", "one or more steps", "none")
    done.sort(key=lambda part: part[0])
    return {name: _joined(chosen, [(of[0], tables[name]) for of, tables in done]) for name in done[0][1]}


def _joined(chosen: Selection, parts: Sequence[tuple[int, pd.DataFrame]]) -> pd.DataFrame:
    """Tables of several steps as one; empty ones are left out, since their columns have no types."""
    labelled = []
    for step, table in parts:
        if chosen.source.has_steps and "step" not in table:
            table.insert(0, "step", step)
        labelled.append(table)
    filled = [table for table in labelled if len(table)] or labelled[:1]
    whole = pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0].reset_index(drop=True)
    whole.attrs = dict(parts[-1][1].attrs)
    if chosen.given is None:
        whole.attrs["sequences"] = chosen.drawn
    return whole


def _as_table(found: Any) -> pd.DataFrame:
    """What a measure returned, as a table."""
    if isinstance(found, Mapping):
        return pd.DataFrame([dict(found)])
    require(isinstance(found, pd.DataFrame), "what", "a table, or numbers by name, from it", type(found).__name__)
    return found
