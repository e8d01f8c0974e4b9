"""Measure probes of a source: weight probes in one batched pass over steps, activation probes in one forward per step.

Values of the package's own probes on a trajectory of a shipped task are kept beside it (`cache.py`). A user's
functions, and all probes of a user's task, are measured each time, because the cache cannot see changes in their code.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import InputError, UnsupportedError, require
from induction_memory.model.config import ModelConfig
from induction_memory.model.head_names import head_names
from induction_memory.probes import cache, catalogue
from induction_memory.probes.activations import Activations
from induction_memory.probes.chunks import over_chunks
from induction_memory.probes.registry import Probe
from induction_memory.progress import keeping, track
from induction_memory.runner.recording import Runner
from induction_memory.subject import SEQUENCES, Subject
from induction_memory.task.batch import Batch
from induction_memory.task.protocol import Task
from induction_memory.task.registry import to_dict

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
        kept = cache.load(self.run, probe.name, self.arguments[probe.of]) if _cacheable(probe) else None
        return None if kept is None else Curves(*kept)

    def save(self, probe: Probe, curves: Curves) -> None:
        if _cacheable(probe):
            cache.save(self.run, probe.name, self.arguments[probe.of], curves.values, curves.heads)


def _ships(task: Task | None) -> bool:
    """Whether the code of the task is the package's, so that a change in it changes the cache's key."""
    return task is None or type(task).__module__.partition(".")[0] == __name__.partition(".")[0]


def _cacheable(probe: Probe) -> bool:
    return probe.family in (*catalogue.FAMILIES, *catalogue.OF_TASK)


def _digest(batch: Batch) -> str:
    digest = hashlib.sha256()
    for tensor in (batch.tokens, batch.targets, batch.counted, *batch.groups.values(), *batch.latents.values()):
        digest.update(repr(tuple(tensor.shape)).encode() + tensor.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()
