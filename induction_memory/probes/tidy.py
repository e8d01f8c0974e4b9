"""Tables of probes.

    table(run)                       the paper's recall probes at every step
    table(run, ["W_O2", "attention"], step=[0, 300])      probes, or whole families, at some steps
    table(run, ["W_O2", my_probe])   a function of one's own beside them (registry.py)
    table(run, "all")                everything
    table(series, ["entropy1"])      one checkpoint of a series after another; the standard head scores by default

A table has the columns step, probe, head and value, and one row per observation. `head` is `L1H1` for a head,
`L1H3>L2H1` for a pair, "" for a probe that has no heads. A probe that the model does not support is left out, and
`table.attrs["skipped"]` says why: name -> reason.

Probes of weights measure many steps in one batched pass. Probes of activations share one forward per step, and their
values are kept on the disk, unless a user's function is among them.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from induction_memory.errors import InputError, UnsupportedError, require
from induction_memory.model.memories import head_names
from induction_memory.probes.activations import Activations
from induction_memory.probes.catalogue import FAMILIES, OF_TASK, Names, find, has_memories, resolve
from induction_memory.probes.registry import Probe
from induction_memory.source.measuring import Progress, over_steps
from induction_memory.source.sources import SEQUENCES, At, Selection, Sequences, select
from induction_memory.task.protocol import Task
from induction_memory.trajectory.search import Steps

CHUNK, CHUNK_BYTES = 32, 8 << 20
"""Most steps whose score tables are held at once, and most bytes of one of these tables."""
Tables = dict[str, pd.DataFrame]


def table(
    source: Any,
    names: Names = None,
    *,
    step: Steps = "all",
    batch: Sequences = None,
    task: Task | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Probes of any source at all steps or some: step, probe, head, value.

    `names` are probes, families or functions. None means the paper's recall probes, or what the task allows without
    them (distances to its predictors, else loss and accuracy), "all" every probe. Activation probes run on `batch`, or
    on 64 sequences from the task with the run's evaluation seed, or without a task on random tokens repeated once. An
    interruption keeps the steps that are done.

    >>> table("induction-small", ["W_O2", "norm_W_O2"], step=[0, 600]).round(2)
       step      probe  head  value
    0     0       W_O2  L2H1   0.00
    1   600       W_O2  L2H1   1.00
    2     0  norm_W_O2  L2H1   6.55
    3   600  norm_W_O2  L2H1  25.36
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=SEQUENCES)
    if names is None and chosen.task is None and not hasattr(chosen.source, "stacked"):
        how = {"probes": "standard", "batch": batch}
        return _joined([over_steps(chosen, _standard_scores, settings=how, progress=progress)])
    probes, parts = resolve(names, chosen), []
    of_weights = [probe for probe in probes if probe.of == "weights"]
    others = [probe for probe in probes if probe.of == "activations"]
    if of_weights:
        parts.append(over_steps(chosen, partial(_measured, of_weights, {}), size=chunk_of(chosen)))
    if others:
        own = [probe.measure for probe in others if probe.family not in (*FAMILIES, *OF_TASK)]
        how = {"probes": [probe.name for probe in others], "own": own, "batch": batch}
        parts.append(over_steps(chosen, partial(_measured, others, {}), settings=how, progress=progress))
    tidy = _joined(parts)
    place = pd.Index([probe.name for probe in probes]).get_indexer(pd.Index(tidy["probe"]))
    order = np.lexsort([tidy["step"].to_numpy(), place])
    result = pd.DataFrame(tidy.iloc[order]).reset_index(drop=True)
    result.attrs = tidy.attrs
    return result


def _joined(parts: Sequence[Tables]) -> pd.DataFrame:
    """One table of values, without the probes that some step does not support, which `attrs` names."""
    filled = [part["table"] for part in parts if len(part["table"])] or [parts[0]["table"]]
    tidy, reasons = pd.concat(filled, ignore_index=True), pd.concat([part["skipped"] for part in parts])
    skipped = dict(zip(reasons["probe"], reasons["reason"], strict=True))
    tidy = pd.DataFrame(tidy[~tidy["probe"].isin(list(skipped))])
    tidy.attrs["skipped"] = skipped
    return tidy


def wide(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per step, one column per probe.

    With several heads one column each, `W_K1[L1H2]`, and their spread: `W_K1_min`, `W_K1_mean`, `W_K1_max`.

    >>> wide(table("induction-small", ["W_O2", "norm_W_O2"])).loc[600].round(2).to_dict()
    {'W_O2': 1.0, 'norm_W_O2': 25.36}
    """
    columns: dict[str, Any] = {}
    for probe, rows in tidy.groupby("probe", sort=False):
        by_head = rows.pivot_table(index="step", columns="head", values="value", sort=False, dropna=False)
        if by_head.shape[1] == 1:
            columns[str(probe)] = by_head.iloc[:, 0]
            continue
        columns |= {f"{probe}[{head}]": by_head[head] for head in by_head}
        columns |= {f"{probe}_{name}": getattr(by_head, name)(axis=1) for name in ("min", "mean", "max")}
    result = pd.DataFrame(columns, index=pd.Index(tidy["step"].unique(), name="step"))
    result.attrs["skipped"] = tidy.attrs.get("skipped", {})
    return result


def recall(
    source: Any, names: Iterable[str] | None = None, *, step: Steps = "all", task: Task | None = None
) -> pd.DataFrame:
    """The memory recall probes, one row per step and one column per probe (`wide`); the paper's by default.

    >>> recall("induction-small", ["W_O2", "W_K2"]).loc[100].round(2).to_dict()
    {'W_O2': 0.95, 'W_K2': 0.29}
    """
    chosen = select(source, step=step, task=task)
    if names is None and not has_memories(chosen):
        instead = "im.probes.table measures its distances to the task's predictors"
        raise InputError(f"task: expected one that says what matrices store, got {chosen.task.name!r} ({instead})")
    return wide(table(chosen.source, names, step=step, task=task))


def value(probe: Probe, subject: Any) -> Tensor:
    """What a probe returns, as a tensor in double precision."""
    result = probe.measure(subject)
    try:
        return torch.as_tensor(result).double()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{probe.name}: expected numbers from the probe, got {result!r:.60}") from None


def chunk_of(chosen: Selection) -> int:
    """How many steps of a source are measured at once, so that the score tables stay small."""
    if len(chosen.steps) <= 1:
        return 1
    stack = chosen.at().stack
    positions = stack.weights["pos_embed.W_pos"].shape[-2] if "pos_embed.W_pos" in stack.weights else 0
    side = max(stack.vocab_size, positions)
    return min(CHUNK, max(1, CHUNK_BYTES // (4 * side * side * stack.n_heads)))


def _measured(probes: Sequence[Probe], facts: dict[str, Any], at: At) -> Tables:
    """The values of probes of one kind: of the weights of some steps, or of the activations of one forward."""
    of_weights = probes[0].of == "weights"
    subject = at.stack if of_weights else Activations(at, facts)
    n, parts, reasons = len(at.steps), list[pd.DataFrame](), dict[str, str]()
    for probe in probes:
        try:
            found = value(probe, subject)
        except UnsupportedError as reason:
            reasons[probe.name] = str(reason)
            continue
        first = found.shape[0] if of_weights and found.dim() else 0
        require(not of_weights or first in (1, n), probe.name, f"a first axis of {n} steps", tuple(found.shape))
        heads, per_step = head_names(probe.layers, at.stack.n_heads), found.numel() // max(first, 1)
        expected = f"one value per step{f' and each of {len(heads)} heads' if probe.layers else ''}"
        require(per_step == len(heads), probe.name, expected, f"{per_step} per step (does it name its `layers`?)")
        numbers = found.reshape(-1, len(heads)).expand(n, -1).flatten().cpu().numpy()
        step, head = np.repeat(at.steps, len(heads)), np.tile(np.array(heads, dtype=object), n)
        parts.append(pd.DataFrame({"step": step, "probe": probe.name, "head": head, "value": numbers}))
    empty = pd.DataFrame({"step": pd.Series(dtype=int), "probe": [], "head": [], "value": pd.Series(dtype=float)})
    skipped = pd.DataFrame({"probe": list(reasons), "reason": list(reasons.values())}, dtype=object)
    return {"table": pd.concat(parts, ignore_index=True) if parts else empty, "skipped": skipped}


def _standard_scores(at: At) -> Tables:
    """The head scores on repeated random tokens, of every layer."""
    kinds, layers = ("repeated_previous", "repeated_induction"), range(1, at.model.cfg.n_layers + 1)
    return _measured([find(f"{kind}{layer}") for kind in kinds for layer in layers], {}, at)
