"""Runs grouped by what differs in their configuration, seeds apart: replicates of one experiment share a group."""

from collections.abc import Sequence
from typing import Any

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.subject import subject

REPLICATES = {"train.init_seed", "train.data_seed", "train.eval_seed", "train.threads", "train.device"}
"""Fields in which replicates of one experiment may differ: the seeds, and where it was trained."""


def by_configuration(runs: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """(what sets a group apart, its runs) in the order given. Sources without a configuration are one group.

    >>> import induction_memory as im
    >>> [label for label, _ in by_configuration(["fixed-triggers", "fixed-triggers"])]
    ['']
    """
    groups: list[tuple[RunConfig | None, list[Any]]] = []
    for run in runs:
        config = _configuration(run)
        members = next((members for known, members in groups if _alike(known, config)), None)
        if members is None:
            groups.append((config, [run]))
        else:
            members.append(run)
    if len(groups) == 1:
        return [("", groups[0][1])]
    varied = _varied([config for config, _ in groups if config is not None])
    return [("unknown" if config is None else _label(config, varied), members) for config, members in groups]


def _configuration(run: Any) -> RunConfig | None:
    trajectory = subject(run).run
    try:
        return None if trajectory is None else trajectory.config
    except InputError:
        return None


def _alike(a: RunConfig | None, b: RunConfig | None) -> bool:
    if a is None or b is None:
        return a is b
    return not a.differences(b).keys() - REPLICATES


def _varied(configs: Sequence[RunConfig]) -> list[str]:
    """The fields in which any of them differs from the first."""
    paths = [path for config in configs[1:] for path in configs[0].differences(config)]
    return [path for path in dict.fromkeys(paths) if path not in REPLICATES]


def _label(config: RunConfig, paths: Sequence[str]) -> str:
    values = []
    for path in paths:
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name, None)
        values.append(f"{path}={value}")
    return ", ".join(values)
