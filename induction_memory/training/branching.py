"""Branches: train on from a stored step of a run, with the batches that run would have seen, under other rules."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from induction_memory.errors import require
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.training.preflight import graft_matrices
from induction_memory.training.run import Resume, run_from, zero_optimizer
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.trajectory.writer import Origin


def branch(
    run: Trajectory,
    at: int,
    out: str | Path,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: Sequence[str] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
    resume: Resume = False,
    quiet: bool = False,
    log: str | None = None,
    command: str | None = None,
) -> Trajectory:
    """Train on from a stored step of a run.

    The rules are added to the run's own and hold from the branch's step on unless they say otherwise: `freeze=["W_K1"]`
    freezes from `at`. `steps` is the number of the last step (the run's own when not given); `settings` change any
    other field by its path. The optimiser goes on from its stored state; if none was kept, from zero.
    """
    at = run.resolve(at)
    config = branch_config(run.config, at, freeze=freeze, clamps=clamps, grafts=grafts, steps=steps, settings=settings)
    how = {"resume": resume, "quiet": quiet, "log": log, "command": command}
    return run_from(lambda: _origin(run, at, config), at, config, out, **how)


def branch_config(
    config: RunConfig,
    at: int,
    *,
    freeze: Sequence[str] = (),
    clamps: Sequence[str] = (),
    grafts: Sequence[str] = (),
    steps: int | None = None,
    settings: Sequence[str] = (),
) -> RunConfig:
    """The configuration of a branch: the run's, with rules from step `at` on."""
    train = config.train
    frozen = [str(Freeze(rule.name, at, None) if ":" not in text else rule) for text, rule in _read(Freeze, freeze)]
    clamped = [str(Clamp(rule.kind, at) if "@" not in text else rule) for text, rule in _read(Clamp, clamps)]
    grafted = [str(Graft.parse(text, default_start=at)) for text in grafts]
    early = [rule for rule in map(Graft.parse, grafted) if rule.start < at]
    require(not early, "train.grafts", f"grafts from step {at} (the branch's first) on", ", ".join(map(str, early)))
    changed = config.replace(
        train=train.replace(
            freeze=(*train.freeze, *frozen),
            clamps=(*train.clamps, *clamped),
            grafts=(*(str(rule) for rule in train.graft_rules if rule.start > at), *grafted),
            steps=train.steps if steps is None else steps,
        )
    ).with_settings(list(settings))
    require(changed.train.steps >= at, "train.steps", f"at least {at} (the branch's first step)", changed.train.steps)
    same = changed.model.replace(trained=None) == config.model.replace(trained=None)
    require(same, "model", "the run's own architecture", "another")
    return changed


def _read(kind: Any, texts: Sequence[str]) -> list[tuple[str, Any]]:
    return [(text, kind.parse(text)) for text in texts]


def _origin(run: Trajectory, at: int, config: RunConfig) -> Origin:
    """A branch from a stored step."""
    parameters = run.state(at)
    optimizer = zero_optimizer(config, parameters)
    stored = run.source.optimizer(at) if config.train.optimizer == run.config.train.optimizer else None
    optimizer |= {name: value for name, value in (stored or {}).items() if name in optimizer}
    parent = {
        "name": run.name,
        "fingerprint": run.fingerprint,
        "step": at,
        "optimizer": "stored" if stored else "zero",
    }
    return Origin(parameters, optimizer, graft_matrices(config), run.initial(), at, parent)
