"""All probes by name, and tables of them.

    table(run)                       the paper's recall probes at every step
    table(run, ["W_O2", "attention"], step=[0, 300])      probes, or whole families, at some steps
    table(run, ["W_O2", my_probe])   with your own function (registry.py)
    table(run, "all")                everything
    table(series, ["entropy1"])      one checkpoint of a series after another; the standard head scores by default

A table has the columns step, probe, head and value, and one row per observation. `head` is `L1H1` for a head,
`L1H3>L2H1` for a pair, "" for a probe that has no heads. A probe that the model does not support is left out, and
`table.attrs["skipped"]` says why: name -> reason.

Probes of weights measure many steps in one batched pass. Probes of activations share one forward per step. Their values
are kept on the disk, unless a user's function is among the probes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from induction_memory.errors import InputError, UnsupportedError, nearest, require
from induction_memory.model.memories import head_names
from induction_memory.probes import (
    attention,
    attribution,
    composition,
    memory_recall,
    prediction,
    predictors,
    weight_size,
)
from induction_memory.probes.activations import Activations
from induction_memory.probes.registry import Probe, registered, split_layer
from induction_memory.source.elsewhere import Engine
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import SEQUENCES, At, Selection, Sequences, select
from induction_memory.task.protocol import Task, offered
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

FAMILIES: dict[str, ModuleType] = {
    "recall": memory_recall,
    "weights": weight_size,
    "composition": composition,
    "attention": attention,
    "prediction": prediction,
    "attribution": attribution,
}
"""Family -> its module. The module's `PROBES` has the listed probes by name."""
LISTED: dict[str, Probe] = {name: probe for family in FAMILIES.values() for name, probe in family.PROBES.items()}
NUMBERED = composition.NUMBERED | attention.NUMBERED | prediction.NUMBERED | attribution.NUMBERED
"""Stem of a name -> the probe for the number after it (a layer or an occurrence), listed or not."""
OF_TASK: dict[str, Callable[[Selection], list[Probe]]] = {
    "predictors": predictors.of_predictors,
    "sources": predictors.of_sources,
}
"""Families whose members depend on the task: its predictors, its sources."""
PATTERNS = {
    "kl_to_<predictor>": "mean over counted positions of KL(predictor || model), for a predictor of the task",
    "mass_on_<role><layer>": "mean attention of the main group's queries to a source of the task, such as the parent",
    "loss_<group>, accuracy_<group>": "over the positions of a group of the task",
}
"""Names that depend on the task -> what they measure."""

Names = str | Callable[[Any], Any] | Iterable[str | Callable[[Any], Any]] | None
CHUNK, CHUNK_BYTES = 32, 8 << 20
"""The largest number of steps whose score tables are in memory together, and the largest size of such a table."""
Tables = dict[str, pd.DataFrame]


def names() -> dict[str, str]:
    """Every probe's name with its description.

    >>> import induction_memory as im
    >>> im.probes.names()["W_O2"]
    'w_U(j)^T W_O2 W_V2 w_E(k) -> j = k; recall: share of items that choose their target'
    """
    return {probe.name: probe.about for probe in [*LISTED.values(), *registered.values()]}


def built_in(name: str) -> Probe | None:
    """The package's probe of this name."""
    stem, number = split_layer(name)
    numbered = NUMBERED[stem](number) if number and stem in NUMBERED else None
    return LISTED.get(name) or numbered or memory_recall.named(name) or predictors.named(name)


def find(name: str) -> Probe:
    """The probe of this name, registered or built in."""
    found = registered.get(name) or built_in(name)
    if found is None:
        families = [*FAMILIES, *OF_TASK, "all"]
        near = nearest(name, [*names(), *families])
        raise InputError(f"probe: expected a probe or a family ({', '.join(families)}), got {name!r}{near}")
    return found


def resolve(wanted: Names, source: Selection) -> list[Probe]:
    """The wanted probes in order, with families replaced by their members, each probe once.

    None means the paper's recalls; for a task without such memories, the distances to its predictors; for a task
    without predictors, loss and accuracy.
    """
    if wanted is None:
        return _by_default(source)
    listed = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    require(bool(listed), "probes", "at least one", repr(wanted))
    chosen: dict[str, Probe] = {}
    for item in listed:
        for probe in _meant(item, source):
            same = chosen.setdefault(probe.name, probe)
            require(same.measure == probe.measure, "probes", "one function per name", f"two called {probe.name!r}")
    return list(chosen.values())


def _by_default(source: Selection) -> list[Probe]:
    if has_memories(source):
        return list(map(find, memory_recall.PAPER))
    assert source.task is not None
    if offered(source.task, "predictors") is None:
        return _meant("prediction", source)
    return OF_TASK["predictors"](source)


def has_memories(source: Selection) -> bool:
    """Whether the task names the memories of an induction head; True if the task is not known."""
    if source.task is None:
        return True
    stored = offered(source.task, "associations") or {}
    return not memory_recall.TABLE.keys().isdisjoint(stored)


def _meant(item: object, source: Selection) -> list[Probe]:
    """The probes of a name, a family or a function."""
    if isinstance(item, str):
        if item == "all":
            every = [probe for family in FAMILIES for probe in _meant(family, source)]
            of_task = [] if source.task is None else [p for family in OF_TASK.values() for p in family(source)]
            return [*every, *of_task, *registered.values()]
        if item in OF_TASK:
            return OF_TASK[item](source)
        if item == "prediction":
            return [*prediction.PROBES.values(), *prediction.of_groups(source)]
        if item in FAMILIES:
            return list(FAMILIES[item].PROBES.values())
        own = [probe for probe in registered.values() if probe.family == item]
        if not own and item.startswith(("loss_", "accuracy_")) and built_in(item) is None:
            own = [probe for probe in prediction.of_groups(source) if probe.name == item]
        return own or [find(item)]
    if not callable(item):
        raise InputError(f"probes: expected names of probes or of families, or functions, got {item!r}")
    for probe in registered.values():
        if probe.measure is item:
            return [probe]
    name = getattr(item, "__name__", "")
    if built_in(name) is not None:
        raise InputError(f"probes: expected a function whose name no probe has, got {name!r}")
    return [Probe(name or repr(item), (item.__doc__ or "").split("\n")[0], item)]


def table(
    source: Any,
    names: "Names" = None,
    *,
    step: "Steps" = "all",
    batch: "Sequences" = None,
    task: Task | None = None,
    progress: "Progress" = None,
    engine: Engine | None = None,
) -> pd.DataFrame:
    """Probes of any source at all steps or some: step, probe, head, value.

    `names` are probes, families or functions. None means the paper's recall probes (for tasks without such memories,
    the distances to the predictors, else loss and accuracy); "all" means every probe. Activation probes run on `batch`,
    by default on 64 sequences from the task with the run's evaluation seed, or without a task on random tokens repeated
    once. An interruption keeps the completed steps. `engine`, such as `im.sweep.Workers(4)`, measures activation probes
    in other processes.

    >>> table("induction-small", ["W_O2", "norm_W_O2"], step=[0, 600]).round(2)
       step      probe  head  value
    0     0       W_O2  L2H1   0.00
    1   600       W_O2  L2H1   1.00
    2     0  norm_W_O2  L2H1   6.55
    3   600  norm_W_O2  L2H1  25.36
    """
    chosen = select(source, step=step, batch=batch, task=task, sequences=SEQUENCES, progress=progress, engine=engine)
    if names is None and _standard(chosen):
        how = {"probes": "standard", "batch": batch}
        return _joined([over_steps(chosen, _standard_scores, settings=how)])
    probes, parts = resolve(names, chosen), []
    of_weights = [probe for probe in probes if probe.of == "weights"]
    others = [probe for probe in probes if probe.of == "activations"]
    if of_weights:
        told = replace(chosen, progress=None) if others and callable(progress) else chosen  # they report the progress
        parts.append(over_steps(told, partial(_measured, of_weights, {}), size=chunk_of(chosen)))
    if others:
        own = [probe.measure for probe in others if probe.family not in (*FAMILIES, *OF_TASK)]
        how = {"probes": [probe.name for probe in others], "own": own, "batch": batch}
        here, there = partial(_measured, others, {}), partial(_measured_there, names=names)
        parts.append(over_steps(chosen, here if engine is None else there, settings=how))
    tidy = _joined(parts)
    place = pd.Index([probe.name for probe in probes]).get_indexer(pd.Index(tidy["probe"]))
    order = np.lexsort([tidy["step"].to_numpy(), place])
    result = pd.DataFrame(tidy.iloc[order]).reset_index(drop=True)
    result.attrs = tidy.attrs
    return result


def _standard(source: Selection) -> bool:
    """Whether a table without names has the standard scores of heads: for models without a task."""
    return source.task is None and not hasattr(source.source, "stacked")


def _joined(parts: Sequence[Tables]) -> pd.DataFrame:
    """One table of values. `attrs` names the probes left out because some step does not support them."""
    filled = [part["table"] for part in parts if len(part["table"])] or [parts[0]["table"]]
    tidy, reasons = pd.concat(filled, ignore_index=True), pd.concat([part["skipped"] for part in parts])
    skipped = dict(zip(reasons["probe"], reasons["reason"], strict=True))
    tidy = pd.DataFrame(tidy[~tidy["probe"].isin(list(skipped))])
    tidy.attrs["skipped"] = skipped
    return tidy


def wide(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per step, one column per probe.

    With several heads, one column per head, `W_K1[L1H2]`, and `W_K1_min`, `W_K1_mean`, `W_K1_max`.

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
    source: Any,
    names: str | Float[Tensor, "d_out d_in"] | Iterable[str] | None = None,
    *,
    inputs: str | Float[Tensor, "i d_in"] | None = None,
    outputs: str | Float[Tensor, "j d_out"] | None = None,
    tokens: Sequence[int | str] | Literal["all"] | None = None,
    targets: Int[Tensor, " i"] | Sequence[int | str] | None = None,
    step: "Steps" = "all",
    task: Task | None = None,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """Recall of memories by name, of one matrix, or between tokens, by default at all steps.

    By name: one row per step and one column per recall probe (`wide`); the paper's probes by default.

    >>> recall("induction-small", ["W_O2", "W_K2"]).loc[100].round(2).to_dict()
    {'W_O2': 0.95, 'W_K2': 0.29}

    With `inputs` and `outputs` (rows of vectors, or their names), `names` is one matrix or its name. The columns are
    recall, mean margin, mean rank and signal to interference. There is one row per step and head, or per pair of heads
    of two layers (`L1H1>L2H1`). `targets[i]` is the output that input i should recall: by default output i, and -1
    leaves the input out.

    >>> recall("induction-small", "W_O2", inputs="W_V2 w_E", outputs="w_U", step=[0, 100, 600]).round(2)
       step  head  recall  margin   rank   sir
    0     0  L2H1    0.00   -0.50  37.74 -0.30
    1   100  L2H1    0.95    3.43   1.12  5.64
    2   600  L2H1    1.00    7.60   1.00  7.05

    With `tokens`, the same through the QK and OV circuits of every head of any model. Tokens are numbers, or texts that
    are one token each for the series' tokenizer, or "all" for the first 512; `targets` are the tokens among them that
    they should recall, themselves by default.

    >>> table = recall("induction-small", tokens="all", step="last")
    >>> table.loc[table["circuit"] == "OV", ["head", "recall"]].values.tolist()
    [['L1H1', 0.0], ['L2H1', 1.0]]
    """
    chosen = select(source, step=step, task=task, progress=progress)
    if tokens is not None:
        alone = names is None and inputs is None and outputs is None
        require(alone, "tokens", "neither names nor inputs nor outputs with tokens", "both")
        return memory_recall.between_tokens(chosen, tokens, targets)
    if inputs is not None or outputs is not None:
        if not isinstance(names, str | Tensor) or inputs is None or outputs is None:
            raise InputError("inputs: expected inputs, outputs and one matrix or its name, got only some of them")
        if targets is not None and not isinstance(targets, Tensor):
            raise InputError(f"targets: expected a tensor of numbers of outputs, got {targets!r}")
        return memory_recall.between(chosen, names, inputs, outputs, targets)
    if isinstance(names, Tensor) or targets is not None:
        raise InputError("inputs: expected inputs and outputs with a matrix or targets, got none")
    if names is None and not has_memories(chosen):
        instead = "im.probes.table measures what this task offers"
        raise InputError(f"task: expected one that says what matrices store, got {chosen.task.name!r} ({instead})")
    if names is None and _standard(chosen):
        raise InputError("task: expected a task, memories by name, or tokens= (for any model), got none of them")
    return wide(table(chosen.source, names, step=step, task=task, progress=progress))


def value(probe: Probe, subject: Any) -> Tensor:
    """The result of a probe, as a tensor in double precision."""
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
    """The values of probes of one kind: of weights at some steps, or of activations in one forward."""
    of_weights = probes[0].of == "weights"
    subject = at.stack if of_weights else Activations(at, facts)
    n, reasons = len(at.steps), dict[str, str]()
    rows = [(np.empty(0, int), np.empty(0, object), np.empty(0, object), np.empty(0))]
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
        names = np.full(n * len(heads), probe.name, dtype=object), np.tile(np.array(heads, dtype=object), n)
        numbers = found.reshape(-1, len(heads)).expand(n, -1).flatten().cpu().numpy()
        rows.append((np.repeat(at.steps, len(heads)), *names, numbers))
    columns = map(np.concatenate, zip(*rows, strict=True))
    values = pd.DataFrame(dict(zip(("step", "probe", "head", "value"), columns, strict=True)))
    skipped = pd.DataFrame({"probe": list(reasons), "reason": list(reasons.values())}, dtype=object)
    return {"table": values, "skipped": skipped}


def _measured_there(at: At, *, names: Names) -> Tables:
    """The values of activation probes in another process, which finds them by name."""
    return _measured([probe for probe in resolve(names, at.chosen) if probe.of == "activations"], {}, at)


def _standard_scores(at: At) -> Tables:
    """The head scores of every layer on random tokens repeated once."""
    kinds, layers = ("repeated_previous", "repeated_induction"), range(1, at.model.cfg.n_layers + 1)
    return _measured([find(f"{kind}{layer}") for kind in kinds for layer in layers], {}, at)
