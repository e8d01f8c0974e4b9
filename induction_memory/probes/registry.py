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
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import InputError, require
from induction_memory.probes import (
    attention,
    cache,
    composition,
    logit_attribution,
    memory_recall,
    prediction,
    weight_size,
)
from induction_memory.probes.activations import Activations
from induction_memory.probes.source import SEQUENCES, Source, Steps, read
from induction_memory.probes.stack import UnsupportedError, head_labels, over_chunks
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import Batch

OF_WEIGHTS: dict[str, ModuleType] = {"recall": memory_recall, "weights": weight_size, "composition": composition}
OF_ACTIVATIONS: dict[str, ModuleType] = {
    "attention": attention,
    "prediction": prediction,
    "attribution": logit_attribution,
}
FAMILIES = OF_WEIGHTS | OF_ACTIVATIONS
CHUNK_BYTES = 8 << 20  # score tables held at once


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
    curves, skipped = _measure(opened, resolve(names), batch, task, cached, progress)
    values = [curve.values for curve in curves.values()]
    tidy = pd.DataFrame(
        {
            "step": _joined([np.repeat(opened.steps, len(curve.heads)) for curve in curves.values()], int),
            "probe": np.repeat(list(curves), [v.size for v in values]) if curves else [],
            "head": [head for curve in curves.values() for head in curve.heads * len(opened.steps)],
            "value": _joined([v.ravel() for v in values], float),
        }
    )
    tidy.attrs["skipped"] = skipped
    return tidy


@dataclass(frozen=True)
class Curves:
    """The values of one probe at all steps, a column a head."""

    values: Float[np.ndarray, "step head"]
    heads: list[str]


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.array([], kind)


def _measure(
    source: Source,
    wanted: list[str],
    batch: Batch | None,
    task: BigramTask | None,
    cached: bool,
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Curves], dict[str, str]]:
    """Curves of the probes wanted, from the cache or computed, and the reasons of those that cannot be had."""
    require(batch is None or isinstance(batch, Batch), "batch", "a Batch, as `sample` makes it", repr(batch))
    keep = _Kept(source, batch, task) if cached and source.trajectory is not None else None
    found = {} if keep is None else {name: kept for name in wanted if (kept := keep.load(name)) is not None}
    missing = [name for name in wanted if name not in found]
    new, skipped = _of_weights(source, [name for name in missing if _family(name) in OF_WEIGHTS])
    active = [name for name in missing if _family(name) in OF_ACTIVATIONS]
    more, reasons = _of_activations(source, active, batch, progress)
    for name, curves in (new | more).items():
        found[name] = curves
        if keep is not None:
            keep.save(name, curves)
    skipped |= reasons
    in_order = {name: found[name] for name in wanted if name in found}
    return in_order, {name: skipped[name] for name in wanted if name in skipped}


def resolve(names: str | Iterable[str] | None) -> list[str]:
    """Probe names in order, families written out, none twice."""
    if names is None:
        return list(memory_recall.PAPER)
    listed = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [names]
    for name in listed:
        require(isinstance(name, str), "probes", "names of probes or of families", repr(name))
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
        columns |= _columns(str(probe), Curves(by_head.to_numpy(), list(by_head.columns)))
    steps = pd.Index(tidy["step"].unique(), name="step")
    return _attributed(pd.DataFrame(columns, index=steps), tidy.attrs.get("skipped", {}))


def recall(
    source: Any,
    names: Iterable[str] | None = None,
    *,
    steps: Steps = "all",
    task: BigramTask | None = None,
    cached: bool = True,
) -> pd.DataFrame:
    """The memory recall probes, one row a step, one column a probe (`wide`); the paper's unless others are named."""
    opened = read(source, steps=steps, task=task)
    curves, skipped = _measure(opened, resolve(names), None, task, cached, None)
    columns = {column: values for name, c in curves.items() for column, values in _columns(name, c).items()}
    return _attributed(pd.DataFrame(columns, index=pd.Index(opened.steps, name="step")), skipped)


def _columns(probe: str, curves: Curves) -> dict[str, np.ndarray]:
    if curves.heads == [""]:
        return {probe: curves.values[:, 0]}
    heads = {f"{probe}[{head}]": curves.values[:, h] for h, head in enumerate(curves.heads)}
    return heads | {f"{probe}_{name}": getattr(curves.values, name)(axis=1) for name in ("min", "mean", "max")}


def _attributed(table: pd.DataFrame, skipped: dict[str, str]) -> pd.DataFrame:
    table.attrs["skipped"] = skipped
    return table


def _family(name: str) -> str:
    for family, module in FAMILIES.items():
        if module.PATTERN.fullmatch(name):
            return family
    from difflib import get_close_matches

    close = get_close_matches(name, [*names(), *FAMILIES], n=3)
    hint = f" (like {', '.join(close)})" if close else ""
    raise InputError(f"probe: expected a probe{hint} or a family ({', '.join(FAMILIES)}, all), got {name!r}")


def _of_weights(source: Source, wanted: list[str]) -> tuple[dict[str, Curves], dict[str, str]]:
    if not wanted:
        return {}, {}
    stack = source.stack
    side = max(
        stack.vocab_size, stack.weights["pos_embed.W_pos"].shape[-2] if "pos_embed.W_pos" in stack.weights else 0
    )
    chunk = max(1, CHUNK_BYTES // (4 * side * side * stack.n_heads))
    values, skipped = over_chunks(stack, wanted, lambda part, name: FAMILIES[_family(name)].measure(part, name), chunk)
    return {name: _curves(value, stack.n_heads) for name, value in values.items()}, skipped


def _of_activations(
    source: Source, wanted: list[str], batch: Batch | None, progress: Callable[[int, int], None] | None
) -> tuple[dict[str, Curves], dict[str, str]]:
    if not wanted:
        return {}, {}
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
    measured = {name: torch.stack([v.double() for v in values]) for name, values in rows.items() if name not in skipped}
    return {name: _curves(values, source.stack.n_heads) for name, values in measured.items()}, skipped


def _curves(values: Float[Tensor, "step *head"], n_heads: int) -> Curves:
    heads = head_labels(n_heads, values.dim() - 1)
    return Curves(values.reshape(len(values), len(heads)).numpy(), heads)


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

    def load(self, name: str) -> Curves | None:
        kept = cache.load(self.run, name, self._arguments(name))
        return None if kept is None else Curves(kept.to_numpy(), list(kept.columns))

    def save(self, name: str, curves: Curves) -> None:
        cache.save(self.run, name, self._arguments(name), pd.DataFrame(curves.values, columns=curves.heads))


def _digest(batch: Batch) -> str:
    digest = hashlib.sha256()
    for tensor in (batch.tokens, batch.targets, batch.counts):
        digest.update(repr(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
