"""Runs grouped by configuration without seeds: replicates of one experiment are in one group."""

from collections.abc import Sequence
from typing import Any

from induction_memory.experiment.run_config import RunConfig
from induction_memory.source.sources import open_source

REPLICATES = {"train.init_seed", "train.data_seed", "train.eval_seed", "train.threads", "train.device"}
"""Fields in which replicates of one experiment may differ: the seeds, and the device."""


def by_configuration(runs: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """(settings that distinguish the group, its runs) for each group, in order. Sources without settings are one group.

    >>> import induction_memory as im
    >>> [label for label, _ in by_configuration(["fixed-triggers", "fixed-triggers"])]
    ['']
    """
    groups: dict[str, list[Any]] = {}
    for label, run in zip(labels(runs), runs, strict=True):
        groups.setdefault(label, []).append(run)
    return list(groups.items())


def labels(runs: Sequence[Any]) -> list[str]:
    """The settings that distinguish each run from the others ("task.k=3"); empty if only seeds differ.

    >>> labels(["fixed-triggers", "fixed-triggers"])
    ['', '']
    """
    if len(runs) < 2:
        return [""] * len(runs)
    configs = [_configuration(run) for run in runs]
    first = [next(i for i, known in enumerate(configs) if _alike(known, config)) for config in configs]
    if len(set(first)) <= 1:
        return [""] * len(configs)
    varied = _varied([config for i in sorted(set(first)) if (config := configs[i]) is not None])
    return ["unknown" if (config := configs[i]) is None else _label(config, varied) for i in first]


def _configuration(run: Any) -> RunConfig | None:
    source: Any = open_source(run)
    return None if source.task is None else source.config


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
