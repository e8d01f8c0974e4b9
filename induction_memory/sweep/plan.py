"""A sweep's file and the runs that it describes.

    preset = "demo"                       the experiment that all runs start from
    seeds = [0, 1, 2]                     each run once per seed; by default [0]

    [set]                                 settings of all runs
    train.steps = 300

    [grid]                                every combination of these values
    task.k = [1, 3, 5]
    train.learning_rate = [0.2, 0.5]

    [[runs]]                              or a list of settings, one table per run, with an optional name
    name = "output-frozen"
    train.freeze = ["W_O2: ..100"]

A list and a grid together give every combination of both. Values are read as in `--set`. Each run trains in its own
folder, whose name depends only on the run's settings, so adding values or seeds does not move other runs. Runs train
with one thread unless the file says otherwise.

`estimate` predicts a sweep's time and disk space. Time: three steps of each kind of run (task, model, batch, loss) are
trained, and the faster of the last two counts. After MOST_MEASURED kinds, the time of the others is scaled by their
number of multiplications. The time of the first evaluations is added for each run. Disk: the bytes of the
stored parameters. A finished run holds them once, and a run that is being compacted twice. Adaptive checkpoints keep
more.
"""

import hashlib
import heapq
import itertools
import json
import math
import os
import re
import shlex
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from induction_memory.errors import InputError, require, require_known
from induction_memory.experiment.presets import preset as find_preset
from induction_memory.experiment.presets import with_seed
from induction_memory.experiment.run_config import RunConfig
from induction_memory.field_docs import field_docs
from induction_memory.terminal import track

MOST_RUNS = 100_000
LONGEST_NAME = 120
_PARTS = ("preset", "seeds", "set", "grid", "runs")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@field_docs
@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    """Its folder in the sweep's folder."""
    preset: str
    seed: int
    settings: tuple[str, ...]
    """The settings that differ from the preset, written as in `--set`."""

    @property
    def config(self) -> RunConfig:
        """Made anew at each call, so that thousands of runs do not keep their task's tables in memory."""
        return with_seed(find_preset(self.preset).config, self.seed).with_settings(self.settings)

    @property
    def command(self) -> str:
        """The command that trains this run alone."""
        settings = [part for setting in self.settings for part in ("--set", setting)]
        return shlex.join(
            ["induction-memory", "train", self.preset, "--seed", str(self.seed), *settings, "--out", self.name]
        )


@field_docs
@dataclass(frozen=True)
class Sweep:
    """A sweep as its file describes it; settings are path -> text, as in `--set`.

    >>> import induction_memory as im
    >>> four = im.sweep.Sweep("demo", seeds=(0, 1), grid={"task.k": ("3", "5")})
    >>> [run.name for run in four.runs]
    ['task.k-3_seed-0', 'task.k-3_seed-1', 'task.k-5_seed-0', 'task.k-5_seed-1']
    """

    preset: str
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, str] | None = None
    grid: Mapping[str, tuple[str, ...]] | None = None
    variants: tuple[tuple[str | None, Mapping[str, str]], ...] = ((None, {}),)
    """Name, if there is one, and settings of each entry of the list."""

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every run, checked: each configuration is made once."""
        grid = self.grid or {}
        total = len(self.seeds) * len(self.variants)
        for values in grid.values():
            total *= len(values)
        require(total <= MOST_RUNS, "grid", f"at most {MOST_RUNS:,} runs", f"{total:,}")
        found: dict[str, PlannedRun] = {}
        for run in self._combinations(grid):
            require(run.name not in found, "runs", "runs that differ", f"{run.name!r} twice")
            assert run.config
            found[run.name] = run
        return tuple(found.values())

    def _combinations(self, grid: Mapping[str, tuple[str, ...]]) -> Iterator[PlannedRun]:
        shared = {"train.threads": "1"} | dict(self.settings or {})
        for (name, variant), values in itertools.product(self.variants, itertools.product(*grid.values())):
            chosen = {**variant, **dict(zip(grid, values, strict=True))}
            settings = tuple(f"{path}={text}" for path, text in (shared | chosen).items())
            shown = chosen if name is None else {path: chosen[path] for path in grid}
            for seed in self.seeds:
                yield PlannedRun(_run_name(name, shown, seed), self.preset, seed, settings)


def read(file: str | Path) -> Sweep:
    """The sweep of a TOML file; an unknown key or value is an error.

    >>> import pathlib
    >>> import tempfile
    >>> import induction_memory as im
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "sweep.toml"
    >>> written = file.write_text('preset = "demo"')
    >>> im.sweep.read(file).seeds
    (0,)
    """
    require(isinstance(file, str | Path), "FILE", "a sweep's file", repr(file))
    require(os.path.isfile(file), "FILE", "a sweep's file", repr(str(file)))  # a device file may never end
    try:
        values = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"FILE: expected a sweep's file, got {str(file)!r} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # not TOML, or not text
        raise InputError(f"{file}: expected TOML, got {' '.join(str(error).split())}") from error
    try:
        sweep = _sweep(values)
        assert sweep.runs
    except InputError as mistake:
        raise InputError(f"{file}: {mistake}") from mistake
    return sweep


def _sweep(values: Mapping[str, Any]) -> Sweep:
    for name in values:
        require_known(name, _PARTS, name)
    preset, seeds = values.get("preset"), values.get("seeds", [0])
    if not isinstance(preset, str):
        raise InputError(f"preset: expected the name of an experiment, got {preset!r}")
    find_preset(preset)
    whole = isinstance(seeds, list) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds)
    require(bool(whole), "seeds", "a list of whole numbers of at least 0", repr(seeds))
    grid: dict[str, tuple[str, ...]] = {}
    for path, listed in _flat(values.get("grid", {}), "grid").items():
        require(isinstance(listed, list) and bool(listed), f"grid.{path}", "a list of values", repr(listed))
        grid[path] = tuple(_text(path, value) for value in listed)
    shared = {path: _text(path, value) for path, value in _flat(values.get("set", {}), "set").items()}
    entries = values.get("runs", [{}])
    require(isinstance(entries, list) and bool(entries), "runs", "a list of tables ([[runs]])", repr(entries))
    variants = tuple(_variant(entry) for entry in entries)
    for path in grid:
        twice = path in shared or any(path in settings for _, settings in variants)
        require(not twice, f"grid.{path}", "a setting that is set only once", f"{path} twice")
    return Sweep(preset, tuple(seeds), shared, grid, variants)


def _variant(entry: Any) -> tuple[str | None, dict[str, str]]:
    require(isinstance(entry, dict), "runs", "tables", repr(entry))
    name = entry.get("name")
    good = name is None or (isinstance(name, str) and _NAME.fullmatch(name) and len(name) <= LONGEST_NAME // 2)
    allowed = f"up to {LONGEST_NAME // 2} letters, digits and . _ + - after a first letter or digit"
    require(bool(good), "runs.name", allowed, repr(name))
    settings = _flat({key: value for key, value in entry.items() if key != "name"}, "runs")
    return name, {path: _text(path, value) for path, value in settings.items()}


def _flat(table: Any, field: str) -> dict[str, Any]:
    """`{"task": {"k": 3}}`, as TOML reads `task.k = 3`, as `{"task.k": 3}`."""
    require(isinstance(table, dict), field, "a table", repr(table))
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        for path, item in inner.items():
            require(path not in found, f"{field}.{path}", "a setting once", "it twice")
            found[path] = item
    return found


def _text(path: str, value: Any) -> str:
    """A TOML value as text for `--set`."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except TypeError:
        allowed = "text, a number, true or false, or a list"
        raise InputError(f"{path}: expected {allowed}, got {str(value)!r}") from None


def _run_name(name: str | None, settings: Mapping[str, str], seed: int) -> str:
    """A folder's name from the settings, with a hash if the name alone would be ambiguous."""
    exact = [*([name] if name else []), *(f"{path}-{text}" for path, text in settings.items()), f"seed-{seed}"]
    plain = [re.sub(r"[^A-Za-z0-9._+-]+", "-", part).strip("-") for part in exact]
    readable = "_".join(plain)
    if plain == exact and len(readable) <= LONGEST_NAME:
        return readable
    digest = hashlib.sha256(json.dumps(exact).encode()).hexdigest()[:10]
    return f"{readable[: LONGEST_NAME - 11]}-{digest}"


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
    """Seconds of training left, on one thread."""
    disk: int
    """Bytes of the finished run."""


def estimate(runs: Sequence[PlannedRun], states: dict[str, str], begun: dict[str, float]) -> list[Estimate]:
    """One estimate per run; `begun` has the completed share of each unfinished run."""
    measured: dict[str, float] = {}  # kind of run -> seconds per step
    once = 0.0  # seconds that a run takes beside its steps
    sizes: dict[str, tuple[int, int]] = {}
    work = taken = 0.0
    found = []
    for run in track(runs, "estimates"):
        config, state, seconds = run.config, states[run.name], 0.0
        kind = _kind(config)
        key = json.dumps(kind.to_dict())
        if state != "done":
            if key not in measured and len(measured) < MOST_MEASURED:
                measured[key], beside = _seconds(kind)
                once = max(once, beside)
                work, taken = work + cost(kind), taken + measured[key]
            per_step = measured[key] if key in measured else cost(kind) * taken / work
            seconds = per_step * config.train.steps * (1 - begun.get(run.name, 0.0)) + once
        if key not in sizes:
            sizes[key] = _numbers(config)
        found.append(Estimate(run.name, state, config.train.steps, seconds, _bytes(config, *sizes[key])))
    return found


def total(estimates: Sequence[Estimate], workers: int) -> tuple[float, int]:
    """Seconds until all runs are done on this number of workers, and bytes of disk that they add.

    The runs go to the workers in order, each to the first free one. While a run is compacted, the disk holds it twice,
    so the `workers` largest runs are counted twice.
    """
    free = [0.0] * workers
    for one in estimates:
        heapq.heapreplace(free, free[0] + one.seconds)
    sizes = sorted((one.disk for one in estimates if one.state != "done"), reverse=True)
    return max(free), sum(sizes) + sum(sizes[:workers])


def cost(config: RunConfig) -> float:
    """The approximate number of multiplications of a run, for the time estimate."""
    model, train = config.model, config.train
    maps = 24 if not model.identity_queries else 4  # d x d products per token and layer, forward and backward
    tokens = train.steps * train.batch_size * config.task.length
    return float(tokens) * model.n_layers * model.d_model * (maps * model.d_model + 2 * config.task.length)


def _kind(config: RunConfig) -> RunConfig:
    """The first steps of a run, without the settings that do not affect their time."""
    train = replace(config.train, steps=2, warmup=0, schedule="constant", learning_rate=1e-3, checkpoints="every 10")
    train = replace(train, freeze=(), grafts=(), clamps=(), init_seed=0, data_seed=1, eval_seed=2)
    return replace(config, train=train)


def _seconds(config: RunConfig) -> tuple[float, float]:
    """Seconds per step, and seconds that a run takes beside its steps."""
    import torch

    from induction_memory.model.building import build
    from induction_memory.training.loop import train

    before = torch.get_num_threads()
    torch.set_num_threads(config.train.threads or 1)
    model, began = build(config.model, 0), time.perf_counter()
    try:
        moments = [time.perf_counter() for _ in train(config.task, model, config.train)]
    finally:
        torch.set_num_threads(before)
    step = min(after - earlier for earlier, after in pairwise(moments))
    return step, moments[-1] - began - step * (len(moments) - 1)


def _bytes(config: RunConfig, still: int, moving: int) -> int:
    states = {"sgd": 1, "adamw": 2}[config.train.optimizer]
    kept = len(config.train.checkpoint_rule.fixed)
    optimizer = states * (kept if config.train.keep_optimizer else 1)
    numbers = still + moving * (kept + optimizer)
    return BYTES_PER_NUMBER * numbers + BYTES_PER_LINE * (config.train.steps + 1) + BYTES_OF_MANIFEST


def _numbers(config: RunConfig) -> tuple[int, int]:
    """How many numbers the frozen and the trained parameters have."""
    moving = set(config.moving_parameters)
    sizes = {name: math.prod(shape) for name, shape in config.model.shapes.items()}
    return sum(n for name, n in sizes.items() if name not in moving), sum(sizes[name] for name in moving)
