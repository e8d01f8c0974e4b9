"""All probes by name, and one table of any of them.

    names()                          name -> what it measures, with its formula
    table(run)                       the paper's recall probes at every step
    table(run, ["W_O2", "attention"], steps=[0, 300])     probes, or whole families, at some steps
    table(run, "all")                everything

The table is tidy: step, probe, head, value; one row an observation. `head` is "" where the model has one head a layer
(or the probe none), "1" for a head, "0>1" for a pair of heads in layers 1 and 2. A probe that the model cannot have is
left out, and `table.attrs["skipped"]` says why: name -> reason.

Weight probes are one batched pass over all steps; activation probes share one forward pass a step.
"""

import hashlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from induction_memory.errors import InputError
from induction_memory.probes import (
    attention,
    attribution,
    cache,
    composition,
    memory_recall,
    prediction,
    weights,
)
from induction_memory.probes.activations import Activations
from induction_memory.probes.source import SEQUENCES, Source, Steps, read
from induction_memory.probes.stack import UnsupportedError, head_labels, over_chunks
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch

OF_WEIGHTS: dict[str, ModuleType] = {"recall": memory_recall, "weights": weights, "composition": composition}
OF_ACTIVATIONS: dict[str, ModuleType] = {
    "attention": attention,
    "prediction": prediction,
    "attribution": attribution,
}
FAMILIES = OF_WEIGHTS | OF_ACTIVATIONS
CHUNK_BYTES = 8 << 20  # score tables held at once
COLUMNS = ["step", "probe", "head", "value"]


def names() -> dict[str, str]:
    """Every probe's name with one line on what it measures."""
    return {name: text for family in FAMILIES.values() for name, text in family.PROBES.items()}


def table(
    source: Any,
    names: str | Iterable[str] | None = None,
    *,
    steps: Steps = "all",
    batch: Batch | None = None,
    task: BigramTask | None = None,
    cached: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """Probes of a trajectory, a model or stacked weights: step, probe, head, value.

    `names` are probes or families; None for the paper's recall probes, "all" for every probe. Activation probes run on
    `batch`, or on one sampled from the task with the run's evaluation seed. A trajectory's results are kept beside it
    unless `cached` is False. `progress(done, total)` is called after each forward pass.
    """
    opened = read(source, steps=steps, task=task)
    wanted = resolve(names)
    results: dict[str, pd.DataFrame] = {}
    keep = _Kept(opened, batch, task) if cached and opened.trajectory is not None else None
    if keep is not None:
        results = {name: found for name in wanted if (found := keep.load(name)) is not None}
    missing = [name for name in wanted if name not in results]
    new, skipped = _of_weights(opened, [n for n in missing if _family(n) in OF_WEIGHTS])
    active = [name for name in missing if _family(name) in OF_ACTIVATIONS]
    more, reasons = _of_activations(opened, active, batch, progress) if active else ({}, {})
    for name, result in (new | more).items():
        results[name] = result
        if keep is not None:
            keep.save(name, result)
    empty = pd.DataFrame({"step": np.array([], int), "probe": [], "head": [], "value": np.array([], float)})
    parts = [results[name] for name in wanted if name in results]
    joined = pd.concat(parts, ignore_index=True) if parts else empty
    joined.attrs["skipped"] = {n: r for n in wanted if (r := (skipped | reasons).get(n)) is not None}
    return joined


def resolve(names: str | Iterable[str] | None) -> list[str]:
    """Probe names in order, families written out, none twice."""
    if names is None:
        return list(memory_recall.PAPER)
    listed = [names] if isinstance(names, str) else list(names)
    chosen: dict[str, None] = {}
    for name in listed:
        if name == "all":
            chosen |= dict.fromkeys(n for family in FAMILIES.values() for n in family.PROBES)
        elif name in FAMILIES:
            chosen |= dict.fromkeys(FAMILIES[name].PROBES)
        else:
            _family(name)
            chosen[name] = None
    return list(chosen)


def wide(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row a step, one column a probe.

    With several heads a column each, `W_K1[0]`, and their spread: `W_K1_min`, `W_K1_mean`, `W_K1_max`.
    """
    columns: dict[str, Any] = {}
    for probe, rows in tidy.groupby("probe", sort=False):
        by_head = rows.pivot_table(index="step", columns="head", values="value", sort=False, dropna=False)
        if list(by_head.columns) == [""]:
            columns[str(probe)] = by_head[""]
            continue
        columns |= {f"{probe}[{head}]": by_head[head] for head in by_head}
        spread = by_head.agg(["min", "mean", "max"], axis=1)
        columns |= {f"{probe}_{name}": spread[name] for name in spread}
    result = pd.DataFrame(columns)
    result.index.name = "step"
    result.attrs["skipped"] = tidy.attrs.get("skipped", {})
    return result


def recall(
    source: Any,
    names: Iterable[str] | None = None,
    *,
    steps: Steps = "all",
    task: BigramTask | None = None,
    cached: bool = True,
) -> pd.DataFrame:
    """The memory recall probes, one row a step, one column a probe; the paper's unless others are named."""
    return wide(table(source, names, steps=steps, task=task, cached=cached))


def _family(name: str) -> str:
    for family, module in FAMILIES.items():
        if module.PATTERN.fullmatch(name):
            return family
    from difflib import get_close_matches

    close = get_close_matches(name, [*names(), *FAMILIES], n=3)
    hint = f" (like {', '.join(close)})" if close else ""
    raise InputError(f"probe: expected a probe{hint} or a family ({', '.join(FAMILIES)}, all), got {name!r}")


def _of_weights(source: Source, wanted: list[str]) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    if not wanted:
        return {}, {}
    stack = source.stack
    side = max(
        stack.vocab_size, stack.weights["pos_embed.W_pos"].shape[-2] if "pos_embed.W_pos" in stack.weights else 0
    )
    chunk = max(1, CHUNK_BYTES // (4 * side * side * stack.n_heads))
    values, skipped = over_chunks(stack, wanted, lambda part, name: FAMILIES[_family(name)].measure(part, name), chunk)
    return {name: _tidy(source.steps, name, value, stack.n_heads) for name, value in values.items()}, skipped


def _of_activations(
    source: Source, wanted: list[str], batch: Batch | None, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    batch = source.batch() if batch is None and source.task is not None else batch
    skipped: dict[str, str] = {}
    rows: dict[str, list[Tensor]] = {name: [] for name in wanted}
    facts: dict[str, Any] = {}
    for i, step in enumerate(source.steps):
        try:
            model = source.model(int(step))
        except UnsupportedError as reason:
            return {}, dict.fromkeys(wanted, str(reason))
        at_step = Activations(model, batch, source.stack.at(slice(i, i + 1)), facts)
        for name in wanted:
            if name in skipped:
                continue
            try:
                rows[name].append(FAMILIES[_family(name)].measure(at_step, name))
            except UnsupportedError as reason:
                skipped[name] = str(reason)
        if progress is not None:
            progress(i + 1, len(source.steps))
    n_heads = source.stack.n_heads
    kept = {name: values for name, values in rows.items() if name not in skipped}
    return {name: _tidy(source.steps, name, _stacked(values), n_heads) for name, values in kept.items()}, skipped


def _stacked(values: list[Tensor]) -> Tensor:
    import torch

    return torch.stack([value.double() for value in values])


def _tidy(steps: np.ndarray, name: str, values: Tensor, n_heads: int) -> pd.DataFrame:
    """[step, *head] -> step, probe, head, value."""
    heads = head_labels(n_heads, values.dim() - 1)
    flat = values.reshape(len(steps), len(heads))
    return pd.DataFrame(
        {
            "step": np.repeat(steps, len(heads)),
            "probe": name,
            "head": heads * len(steps),
            "value": flat.numpy().ravel(),
        }
    )


class _Kept:
    """The cache of one trajectory for one set of arguments."""

    def __init__(self, source: Source, batch: Batch | None, task: BigramTask | None) -> None:
        assert source.trajectory is not None
        self.run = source.trajectory
        data = f"{SEQUENCES} sequences of seed {source.eval_seed}" if batch is None else _digest(batch)
        self.of_weights = {"steps": source.steps.tolist(), "task": None if task is None else task.to_dict()}
        self.of_activations = self.of_weights | {"batch": data}

    def _arguments(self, name: str) -> dict[str, Any]:
        return self.of_weights if _family(name) in OF_WEIGHTS else self.of_activations

    def load(self, name: str) -> pd.DataFrame | None:
        return cache.load(self.run, name, self._arguments(name))

    def save(self, name: str, result: pd.DataFrame) -> None:
        cache.save(self.run, name, self._arguments(name), result)


def _digest(batch: Batch) -> str:
    digest = hashlib.sha256()
    for tensor in (batch.tokens, batch.targets, batch.counts):
        digest.update(repr(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
