"""Measure probes of a source: weight probes in one batched pass over steps, activation probes in one forward per step.

Values of the package's own probes on a trajectory of a shipped task are kept beside it (`cache.py`). A user's
functions, and all probes of a user's task, are measured each time, because the cache cannot see changes in their code.

Measure many steps a few at a time.

Results kept beside a trajectory, so that they are computed only once.

A result is keyed by everything it depends on: the trajectory's content, the probe's name, its arguments, and the code
of the package that computes it. When any of them changes, so does the key, and the result is computed again. A file
holds the heads as a line of JSON, then the values [step, head] in double precision, with a checksum
(`trajectory/kept_results.py`).

All probes by name: the package's families, and what users have registered.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import InputError, UnsupportedError, require
from induction_memory.model.config import ModelConfig
from induction_memory.model.names import head_names
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
from induction_memory.probes.registry import Probe, registered
from induction_memory.runner.recording import Runner
from induction_memory.source.sources import SEQUENCES, Stack, Subject
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task, offered, to_dict
from induction_memory.terminal import keeping, track
from induction_memory.trajectory import kept_results
from induction_memory.trajectory.lock import CACHE
from induction_memory.trajectory.trajectory import Trajectory


def over_chunks(
    stack: Stack, measures: Mapping[str, Callable[[Stack], Tensor]], chunk: int
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Measure a few steps at a time, so that the score tables stay small.

    Returns name -> [step, *head] in double precision, and name -> reason for probes that this source cannot have.
    """
    values: dict[str, list[Tensor]] = {name: [] for name in measures}
    skipped: dict[str, str] = {}
    for start in range(0, stack.n_steps, chunk):
        part = stack.at(slice(start, start + chunk))
        for name, measure in measures.items():
            if name in skipped:
                continue
            try:
                value = measure(part).double()
            except UnsupportedError as reason:
                skipped[name] = str(reason)
                continue
            values[name].append(value.expand(part.n_steps, *value.shape[1:]))
    return {name: torch.cat(parts) for name, parts in values.items() if name not in skipped}, skipped


CODE = ("task", "memory", "model", "runner", "experiment", "trajectory", "source", "probes")
"""The rooms that a probe's value may depend on."""


def key(run: Trajectory, probe: str, arguments: dict[str, Any]) -> str:
    """SHA-256 of what the result depends on."""
    content = [run.fingerprint, probe, arguments, code_fingerprint()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def code_fingerprint() -> str:
    """SHA-256 of the source behind the probes, because the version does not change during development."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def load(
    run: Trajectory, probe: str, arguments: dict[str, Any]
) -> tuple[Float[np.ndarray, "step head"], list[str]] | None:
    """The values kept for this probe and these arguments, with the names of their heads, or None."""
    name = key(run, probe, arguments)
    content = kept_results.read(_path(run, name), name)
    if content is None:
        return None
    heads, _, values = content.partition(b"\n")
    names = json.loads(heads)
    return np.frombuffer(values, dtype="<f8").reshape(-1, len(names)).copy(), names


def save(
    run: Trajectory,
    probe: str,
    arguments: dict[str, Any],
    values: Float[np.ndarray, "step head"],
    heads: Sequence[str],
) -> None:
    """Keep a result; do nothing if the folder is read-only or the disk is full."""
    name = key(run, probe, arguments)
    kept_results.write(
        _path(run, name), name, json.dumps(list(heads)).encode() + b"\n" + values.astype("<f8").tobytes()
    )


def _path(run: Trajectory, name: str) -> Path:
    return run.path / CACHE / f"{name}.result"


FAMILIES: dict[str, ModuleType] = {
    "recall": memory_recall,
    "weights": weight_size,
    "composition": composition,
    "attention": attention,
    "prediction": prediction,
    "attribution": attribution,
}
"""Each has `PROBES`, and `named` for names with a number that is not listed: a layer, a window or an occurrence."""

OF_TASK: dict[str, Callable[[Subject], list[Probe]]] = {
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


def names() -> dict[str, str]:
    """Every probe's name with one line on what it measures.

    >>> import induction_memory as im
    >>> im.probes.names()["W_O2"]
    'w_U(j)^T W_O2 W_V2 w_E(k) -> j = k; recall: share of items that choose their target'
    """
    listed = [probe for family in FAMILIES.values() for probe in family.PROBES.values()]
    return {probe.name: probe.about for probe in [*listed, *registered.values()]}


def built_in(name: str) -> Probe | None:
    """The package's probe of this name."""
    for family in FAMILIES.values():
        found = family.PROBES.get(name) or family.named(name)
        if found is not None:
            return found
    return predictors.named(name)


def find(name: str) -> Probe:
    """The probe of this name, registered or built in."""
    found = registered.get(name) or built_in(name)
    if found is None:
        close = get_close_matches(name, [*names(), *FAMILIES, *OF_TASK], n=3)
        hint = f" (like {', '.join(close)})" if close else ""
        families = ", ".join([*FAMILIES, *OF_TASK, "all"])
        raise InputError(f"probe: expected a probe{hint} or a family ({families}), got {name!r}")
    return found


def resolve(wanted: Names, source: Subject) -> list[Probe]:
    """The wanted probes in order, with families replaced by their members, each probe once.

    None stands for the paper's recalls. For a task without such memories it stands for the distances to the task's
    predictors, and for a task without predictors for loss and accuracy.
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


def _by_default(source: Subject) -> list[Probe]:
    if _has_memories(source):
        return [find(name) for name in memory_recall.PAPER]
    assert source.known_task is not None
    if offered(source.known_task, "predictors") is None:
        return _meant("prediction", source)
    return OF_TASK["predictors"](source)


def _has_memories(source: Subject) -> bool:
    """Whether the task, if it is known, says what the matrices of an induction head would store."""
    if source.known_task is None:
        return True
    stored = offered(source.known_task, "associations") or {}
    return any(name in memory_recall.TABLE for name in stored)


def _of_group(name: str, source: Subject) -> Probe | None:
    """Loss or accuracy over a group of the source's batch that is not listed."""
    if built_in(name) is not None or not name.startswith(("loss_", "accuracy_")):
        return None
    return next((probe for probe in prediction.of_groups(source) if probe.name == name), None)


def _meant(item: object, source: Subject) -> list[Probe]:
    """The probes that a name, a family or a function stands for."""
    if isinstance(item, str):
        if item == "all":
            every = [probe for family in FAMILIES for probe in _meant(family, source)]
            of_task = [] if source.known_task is None else [p for family in OF_TASK.values() for p in family(source)]
            return [*every, *of_task, *registered.values()]
        if item in OF_TASK:
            return OF_TASK[item](source)
        if item == "prediction":
            return [*prediction.PROBES.values(), *prediction.of_groups(source)]
        if item in FAMILIES:
            return list(FAMILIES[item].PROBES.values())
        own = [probe for probe in registered.values() if probe.family == item]
        return own or [_of_group(item, source) or find(item)]
    if not callable(item):
        raise InputError(f"probes: expected names of probes or of families, or functions, got {item!r}")
    for probe in registered.values():
        if probe.measure is item:
            return [probe]
    name = getattr(item, "__name__", "")
    if built_in(name) is not None:
        raise InputError(f"probes: expected a function whose name is not that of a probe, got {name!r}")
    return [Probe(name or repr(item), (item.__doc__ or "").split("\n")[0], item)]


CHUNK_BYTES = 8 << 20  # score tables held at once
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Curves:
    """The values of one probe at all steps, one column per head."""

    values: Float[np.ndarray, "step head"]
    heads: list[str]


def measure(
    source: Subject,
    probes: Sequence[Probe],
    *,
    batch: Batch | None = None,
    task: Task | None = None,
    cached: bool = True,
    progress: Progress | None = None,
) -> tuple[dict[str, Curves], dict[str, str]]:
    """Curves by name, from the cache or computed, and for each probe that this source cannot have the reason.

    After an interruption the curves of activation probes end with the last completed step.
    """
    require(batch is None or isinstance(batch, Batch), "batch", "a Batch, as `sample` makes it", repr(batch))
    keep = _Kept(source, batch, task) if cached and source.run is not None and _ships(source.known_task) else None
    found = {} if keep is None else {p.name: kept for p in probes if (kept := keep.load(p)) is not None}
    missing = [p for p in probes if p.name not in found]
    new, skipped = _of_weights(source, [p for p in missing if p.of == "weights"])
    more, reasons = _of_activations(source, [p for p in missing if p.of == "activations"], batch, progress)
    for probe in missing:
        if probe.name in new | more:
            found[probe.name] = (new | more)[probe.name]
            if keep is not None and len(found[probe.name].values) == len(source.steps):
                keep.save(probe, found[probe.name])
    skipped |= reasons
    in_order = {p.name: found[p.name] for p in probes if p.name in found}
    return in_order, {p.name: skipped[p.name] for p in probes if p.name in skipped}


def value(probe: Probe, subject: Any) -> Tensor:
    """What a probe returns, as a tensor."""
    result = probe.measure(subject)
    try:
        return torch.as_tensor(result)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{probe.name}: expected numbers from the probe, got {result!r:.60}") from None


def _of_weights(source: Subject, probes: Sequence[Probe]) -> tuple[dict[str, Curves], dict[str, str]]:
    if not probes:
        return {}, {}
    stack = source.stack
    positions = stack.weights["pos_embed.W_pos"].shape[-2] if "pos_embed.W_pos" in stack.weights else 0
    side = max(stack.vocab_size, positions)
    chunk = max(1, CHUNK_BYTES // (4 * side * side * stack.n_heads))

    def measured(probe: Probe, part: Any) -> Tensor:
        found = value(probe, part)
        steps = found.shape[0] if found.dim() else 0
        require(steps in (1, part.n_steps), probe.name, f"a first axis of {part.n_steps} steps", tuple(found.shape))
        return found

    values, skipped = over_chunks(stack, {p.name: lambda part, p=p: measured(p, part) for p in probes}, chunk)
    return {p.name: _curves(p, values[p.name], stack.n_heads) for p in probes if p.name in values}, skipped


def _of_activations(
    source: Subject, probes: Sequence[Probe], batch: Batch | None, progress: Progress | None
) -> tuple[dict[str, Curves], dict[str, str]]:
    if not probes:
        return {}, {}
    batch = source.batch if batch is None and source.known_task is not None else batch
    skipped: dict[str, str] = {}
    rows: dict[str, list[Tensor]] = {p.name: [] for p in probes}
    facts: dict[str, Any] = {}
    done: list[int] = []
    with keeping(done, "steps"):
        for i, step in enumerate(track(source.steps.tolist(), "steps")):
            try:
                runner = _without_norms(source, step)
                model = None if runner is not None else source.model(step)
            except UnsupportedError as reason:
                return {}, {p.name: str(reason) for p in probes}
            build = partial(source.model, step) if model is None else lambda model=model: model
            if batch is not None and model is not None:
                batch = batch.to(next(model.parameters()).device)
            at_step = Activations(build, batch, source.stack.at(slice(i, i + 1)), runner, facts)
            for probe in probes:
                if probe.name in skipped:
                    continue
                try:
                    rows[probe.name].append(value(probe, at_step).double())
                except UnsupportedError as reason:
                    skipped[probe.name] = str(reason)
            done.append(step)
            if progress is not None:
                progress(i + 1, len(source.steps))
    whole = {p: torch.stack(rows[p.name][: len(done)]) for p in probes if p.name not in skipped}
    return {p.name: _curves(p, values, source.stack.n_heads) for p, values in whole.items()}, skipped


def _without_norms(source: Subject, step: int) -> Runner | None:
    """A runner of a step without TransformerLens; None if it does not record all that probes read."""
    if source.run is None or source.via == "hooks":
        return None
    try:
        config = source.run.model_config
    except InputError:
        return None
    return source.runner(step) if isinstance(config, ModelConfig) and not config.layer_norm else None


def _curves(probe: Probe, values: Float[Tensor, "step *head"], n_heads: int) -> Curves:
    heads = head_names(probe.layers, n_heads)
    per_step = values[0].numel() if len(values) else 0
    expected = f"one value per step{f' and each of {len(heads)} heads' if probe.layers else ''}"
    require(per_step == len(heads), probe.name, expected, f"{per_step} per step (does it name its `layers`?)")
    return Curves(values.reshape(len(values), len(heads)).cpu().numpy(), heads)


class _Kept:
    """The cache of one trajectory for one set of arguments."""

    def __init__(self, source: Subject, batch: Batch | None, task: Task | None) -> None:
        assert source.run is not None
        self.run = source.run
        data = f"{SEQUENCES} sequences of seed {source.eval_seed}" if batch is None else _digest(batch)
        of_weights = {"steps": source.steps.tolist(), "task": None if task is None else to_dict(task)}
        self.arguments = {"weights": of_weights, "activations": of_weights | {"batch": data}}

    def load(self, probe: Probe) -> Curves | None:
        kept = load(self.run, probe.name, self.arguments[probe.of]) if _cacheable(probe) else None
        return None if kept is None else Curves(*kept)

    def save(self, probe: Probe, curves: Curves) -> None:
        if _cacheable(probe):
            save(self.run, probe.name, self.arguments[probe.of], curves.values, curves.heads)


def _ships(task: Task | None) -> bool:
    """Whether the code of the task is the package's, so that a change in it changes the cache's key."""
    return task is None or type(task).__module__.partition(".")[0] == __name__.partition(".")[0]


def _cacheable(probe: Probe) -> bool:
    return probe.family in (*FAMILIES, *OF_TASK)


def _digest(batch: Batch) -> str:
    digest = hashlib.sha256()
    for tensor in (batch.tokens, batch.targets, batch.counted, *batch.groups.values(), *batch.latents.values()):
        digest.update(repr(tuple(tensor.shape)).encode() + tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
