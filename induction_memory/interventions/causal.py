"""Causal curves over training: when a component becomes necessary, when it looks right, and by which paths it acts.

At every stored step and for every component,

    necessity   accuracy on the task's main group (in context), intact minus ablated
    recall      the component's recall probe (Section 5): does its matrix store the right pairs?

A component can also be a path of a head: the direct one (`L1H1->direct`), or through the queries, keys or values of one
later head (`L1H1->L2H1.k`). `path_effects` compares the paths of each head with its total effect.

A component can look right (have a high recall) long before anything depends on it: W_O2 is learned first and is of
little use alone. It can also be necessary before it looks right. `delays` compares the steps at which the two curves
change level.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.errors import require
from induction_memory.fields import require_seed
from induction_memory.interventions.ablations import INTACT, Kind, ablate_selection
from induction_memory.probes.emergence import change_point
from induction_memory.probes.tables import table as probe_table
from induction_memory.runner.components import ARROW
from induction_memory.runner.recording import Via
from induction_memory.source.sources import Sequences, select
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

MEMORIES = ("W_K1", "W_K2", "W_O2")


def causal_curves(
    source: Any,
    batch: "Sequences" = None,
    *,
    components: str | Sequence[str] = ("heads", *MEMORIES, "paths"),
    kind: "Kind | Sequence[Kind]" = "mean",
    step: "Steps" = "all",
    via: Via | None = None,
    seed: int = 0,
    sequences: int | None = None,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """One row per step, component and kind: necessity, accuracy with and without it, and recall if it has a probe.

    With several heads, it is the recall of the best head.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(4, im.task.step_rng(0, 2))
    >>> parts = ["L2H1", "W_O2"]
    >>> im.interventions.causal_curves("induction-small", batch, components=parts, step=[0, 600]).round(2)
       step component  kind  necessity  intact  without  without_se  recall
    0     0      L2H1  mean       0.00    0.00     0.00        0.00     NaN
    1     0      W_O2  mean       0.00    0.00     0.00        0.00     0.0
    2   600      L2H1  mean       0.59    0.94     0.35        0.17     NaN
    3   600      W_O2  mean       0.59    0.94     0.35        0.17     1.0
    """
    require_seed(seed)
    chosen = select(source, step=step, batch=batch, sequences=sequences, via=via, progress=progress)
    main = chosen.batch.main
    ablated = ablate_selection(chosen, components=components, kind=kind, seed=seed, group=main)
    accuracy = f"{main}_accuracy"
    require(chosen.source.has_steps, "source", "a source with steps", chosen.name)
    require(accuracy in ablated, "source", "a task with one right output for each position", chosen.name)
    intact: Any = ablated[ablated["component"] == INTACT].set_index("step")[accuracy]
    rows: Any = ablated[ablated["component"] != INTACT].reset_index(drop=True)
    recalls: dict[tuple[int, str], float] = {}
    names = [name for name in MEMORIES if name in set(rows["component"])]
    for row in probe_table(chosen.source, names, step=chosen.steps, progress=False).to_dict("records") if names else []:
        key = (row["step"], row["probe"])
        recalls[key] = max(recalls.get(key, 0.0), row["value"])
    level = rows["step"].map(intact)
    columns = {"necessity": level - rows[accuracy], "intact": level}
    columns |= {"without": rows[accuracy], "without_se": rows[f"{accuracy}_se"]}
    columns["recall"] = [recalls.get(key, np.nan) for key in zip(rows["step"], rows["component"], strict=True)]
    return pd.DataFrame({name: rows[name] for name in ("step", "component", "kind")} | columns)


def path_effects(table: pd.DataFrame) -> pd.DataFrame:
    """One row per step, kind, head and path, from a table of `causal_curves`: the effect, in accuracy.

    The path is "total", "direct", an input of a later head (`L2H1.k`), or "rest": the total minus the other paths. The
    rest goes through earlier feed-forwards, or comes from interactions between the paths.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(4, im.task.step_rng(0, 2))
    >>> table = im.interventions.causal_curves("induction-small", batch, step=600)
    >>> im.interventions.path_effects(table).head(4).round(2)
       step  kind source    path  effect
    0   600  mean   L1H1   total    0.36
    1   600  mean   L1H1  direct    0.00
    2   600  mean   L1H1  L2H1.q    0.00
    3   600  mean   L1H1  L2H1.k    0.36
    """
    rows = []
    for step, kind in dict.fromkeys(zip(table["step"], table["kind"], strict=True)):
        part = table[(table["step"] == step) & (table["kind"] == kind)]
        effects = dict(zip(part["component"], part["necessity"], strict=True))
        heads = dict.fromkeys(name.split(ARROW)[0] for name in effects if ARROW in name)
        for head in (head for head in heads if head in effects):
            paths = {name.split(ARROW)[1]: effect for name, effect in effects.items() if name.startswith(head + ARROW)}
            whole = {"total": effects[head], **paths, "rest": effects[head] - sum(paths.values())}
            rows += [(step, kind, head, path, effect) for path, effect in whole.items()]
    return pd.DataFrame(rows, columns=["step", "kind", "source", "path", "effect"])


def delays(table: pd.DataFrame) -> pd.DataFrame:
    """One row per component and kind: the step at which it looks right, the step at which it is necessary, and the
    delay.

    These are the steps at which the curves change level. A component is necessary only if its necessity after the
    change is larger than before, and more than twice the standard error of the accuracy without it. Otherwise that step
    is nan.

    >>> import induction_memory as im
    >>> batch = im.load("induction-small").task.sample(4, im.task.step_rng(0, 2))
    >>> table = im.interventions.causal_curves("induction-small", batch, components=["W_O2"])
    >>> im.interventions.delays(table).round(0)
      component  kind  looks_right  necessary  delay
    0      W_O2  mean         52.0       55.0    3.0
    """
    rows = []
    for component, kind in dict.fromkeys(zip(table["component"], table["kind"], strict=True)):
        part = table[(table["component"] == component) & (table["kind"] == kind)]
        columns = ("recall", "necessity", "without_se")
        recall, necessity, error = (np.asarray(part[name], dtype=float) for name in columns)
        steps = np.asarray(part["step"])
        looks_right, necessary = change_point(steps, recall)[0], _necessary_from(steps, necessity, error)
        rows.append((component, kind, looks_right, necessary, necessary - looks_right))
    return pd.DataFrame(rows, columns=["component", "kind", "looks_right", "necessary", "delay"])


def _necessary_from(
    steps: Int[np.ndarray, " step"], necessity: Float[np.ndarray, " step"], error: Float[np.ndarray, " step"]
) -> float:
    """The step at which a necessity rises above twice its error; nan if it never does."""
    step, before, after = change_point(steps, necessity)
    return step if after > before and after > 2 * error[steps > step].mean() else np.nan
