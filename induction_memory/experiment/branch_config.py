"""The configuration of a branch: the run's, with rules that hold from the branch's first step on."""

from collections.abc import Sequence
from typing import Any

from induction_memory.errors import require
from induction_memory.experiment.constraints import Clamp, Freeze, Graft
from induction_memory.experiment.run_config import RunConfig
from induction_memory.task.fields import require_texts


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
    for field, rules in (("freeze", freeze), ("clamps", clamps), ("grafts", grafts)):
        require_texts(rules, field, "a list of rules written as text")
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
    ).with_settings(require_texts(settings, "settings", "a list of texts such as train.momentum=0.5"))
    require(changed.train.steps >= at, "train.steps", f"at least {at} (the branch's first step)", changed.train.steps)
    same = changed.model.untrained() == config.model.untrained()
    require(same, "model", "the run's own architecture", "another")
    return changed


def _read(kind: Any, texts: Sequence[str]) -> list[tuple[str, Any]]:
    return [(text, kind.parse(text)) for text in texts]
