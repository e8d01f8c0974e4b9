"""How long a sweep takes and how much disk it needs, before it starts.

Time: three steps of each kind of run (task, model, batch, loss) are really trained, and the faster of the last two
counts. After MOST_MEASURED kinds, the time of the others is estimated from their number of multiplications. Disk: the
bytes of the stored parameters. A finished run holds them once, and twice while it is compacted. Adaptive checkpoints
keep more.
"""

import heapq
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from induction_memory.experiment.run_config import RunConfig
from induction_memory.sweep.plan import PlannedRun

MOST_MEASURED = 8
BYTES_PER_NUMBER = 4
BYTES_PER_LINE = 700
BYTES_OF_MANIFEST = 4000


@dataclass(frozen=True)
class Estimate:
    """Time and disk of one run."""

    name: str
    state: str
    steps: int
    seconds: float
    """Seconds that are still to be trained, on one thread."""
    disk: int
    """Bytes when it is finished."""


def estimate(runs: Sequence[PlannedRun], states: dict[str, str], begun: dict[str, float]) -> list[Estimate]:
    """One estimate per run; `begun` has the completed share of each unfinished run."""
    measured: dict[str, tuple[float, float]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    found = []
    for run in runs:
        config, state, seconds = run.config, states[run.name], 0.0
        kind = _kind(config)
        key = json.dumps(kind.to_dict())
        if state != "done":
            if key not in measured and len(measured) < MOST_MEASURED:
                measured[key] = cost(kind), _seconds_per_step(kind)
            per_step = measured[key][1] if key in measured else _by_cost(kind, measured)
            seconds = per_step * config.train.steps * (1 - begun.get(run.name, 0.0))
        if key not in sizes:
            sizes[key] = _numbers(config)
        found.append(Estimate(run.name, state, config.train.steps, seconds, _bytes(config, *sizes[key])))
    return found


def total(estimates: Sequence[Estimate], workers: int) -> tuple[float, int]:
    """Seconds until all runs are done on this number of workers, and bytes of disk that the missing runs add.

    The runs go to the workers in order, each to the first free one. While a run is compacted, the disk holds it twice,
    so the `workers` largest runs are counted twice.
    """
    free = [0.0] * workers
    for one in estimates:
        heapq.heapreplace(free, free[0] + one.seconds)
    sizes = sorted((one.disk for one in estimates if one.state != "done"), reverse=True)
    return max(free), sum(sizes) + sum(sizes[:workers])


def cost(config: RunConfig) -> float:
    """The rough number of multiplications of a run, for the time that is left."""
    model, train = config.model, config.train
    maps = 24 if not model.identity_queries else 4  # d x d products per token and layer, forward and backward
    tokens = train.steps * train.batch_size * config.task.length
    return float(tokens) * model.n_layers * model.d_model * (maps * model.d_model + 2 * config.task.length)


def _kind(config: RunConfig) -> RunConfig:
    """The first steps of a run, without the settings that do not affect their time."""
    train = replace(config.train, steps=2, warmup=0, schedule="constant", learning_rate=1e-3, checkpoints="every 10")
    train = replace(train, freeze=(), grafts=(), clamps=(), init_seed=0, data_seed=1, eval_seed=2)
    return replace(config, train=train)


def _seconds_per_step(config: RunConfig) -> float:
    import torch

    from induction_memory.model.building import build
    from induction_memory.training.loop import train

    before = torch.get_num_threads()
    torch.set_num_threads(config.train.threads or 1)
    try:
        moments = [time.perf_counter() for _ in train(config.task, build(config.model, 0), config.train)]
    finally:
        torch.set_num_threads(before)
    return min(after - earlier for earlier, after in pairwise(moments))


def _by_cost(config: RunConfig, measured: dict[str, tuple[float, float]]) -> float:
    return cost(config) * sum(seconds for _, seconds in measured.values()) / sum(work for work, _ in measured.values())


def _bytes(config: RunConfig, still: int, moving: int) -> int:
    states = {"sgd": 1, "adamw": 2}[config.train.optimizer]
    kept = len(config.train.checkpoint_rule.fixed)
    optimizer = states * (kept if config.train.keep_optimizer else 1)
    numbers = still + moving * (kept + optimizer)
    return BYTES_PER_NUMBER * numbers + BYTES_PER_LINE * (config.train.steps + 1) + BYTES_OF_MANIFEST


def _numbers(config: RunConfig) -> tuple[int, int]:
    """How many numbers the frozen and the trained parameters have."""
    from induction_memory.model.building import build

    moving = set(config.moving_parameters)
    sizes = {name: value.numel() for name, value in build(config.model).named_parameters()}
    return sum(n for name, n in sizes.items() if name not in moving), sum(sizes[name] for name in moving)
