"""One tidy table of a sweep: one row per run, with the settings that differ between runs and the results."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from induction_memory.errors import Error, InputError, require
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import require_folder
from induction_memory.sweep import plan
from induction_memory.sweep.loop import COPY, FAILURES
from induction_memory.trajectory import rows as row_files
from induction_memory.trajectory.manifest import MANIFEST, Manifest

_NO_METRICS = ("step", "checkpoint")
_SEEDS = ("train.init_seed", "train.data_seed", "train.eval_seed")


def table(folder: str | Path) -> pd.DataFrame:
    """Name, state, settings and results of every run in a sweep's folder.

    `state` is finished, training (begun, perhaps interrupted), missing or failed; `error` says why it failed. Columns
    with a dot, such as `task.k`, are the settings in which the runs differ. `seed` replaces the three seeds if `--seed`
    would set them. `steps` and `seconds` count the training so far. The other columns hold the last measured value of
    each metric. A folder of runs without a sweep's file also works.

    >>> import induction_memory as im
    >>> found = im.sweep.table("checkpoints")
    >>> found.loc[found["run"] == "induction-alone", ["state", "steps"]].values.tolist()
    [['finished', 600]]
    """
    place = require_folder(folder, "folder")
    require(place.is_dir(), "folder", "the folder of a sweep", repr(str(folder)))
    planned = {run.name: run for run in plan.read(place / COPY).runs} if is_sweep(place) else {}
    errors = _errors(place / FAILURES)
    there = {path.parent.name for path in place.glob(f"*/{MANIFEST}")}
    names = [*planned, *sorted(there - planned.keys())]
    require(bool(names), "folder", "the folder of a sweep, or of runs", repr(str(folder)))
    rows, settings = [], []
    for name in names:
        row, config = _row(place / name, name in there, errors.get(name))
        if config is None and name in planned:
            config = planned[name].config
        rows.append({"run": name} | row)
        settings.append({} if config is None else _flat(config))
    return _with_settings(rows, settings)


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep's file."""
    return (folder / COPY).is_file()


def _row(place: Path, there: bool, error: str | None) -> tuple[dict[str, Any], RunConfig | None]:
    """State and results of a run, and its configuration if it can be read."""
    row: dict[str, Any] = {"state": "failed" if error else "missing", "error": error or ""}
    if not there:
        return row, None
    try:
        manifest = Manifest.read(place)
        config = RunConfig.from_dict(manifest.config)
        lines = row_files.of(place, manifest)
    except Error as mistake:  # damage, or no run of this package
        return {"state": "failed", "error": str(mistake)}, None
    if manifest.finished:
        row = {"state": "finished", "error": ""}
    elif not error:
        row["state"] = "training"
    trained = {"steps": manifest.first_step + len(lines) - 1, "seconds": manifest.seconds}
    return row | trained | _last_values(lines), config


def _last_values(lines: list[dict[str, Any]]) -> dict[str, float]:
    """The last measured value of each metric."""
    found: dict[str, float] = {}
    for line in lines:
        found |= {name: value for name, value in line.items() if value is not None}
    return {name: found.get(name, float("nan")) for line in lines[:1] for name in line if name not in _NO_METRICS}


def _errors(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: expected the errors of a sweep as JSON, got {error}") from error


def _with_settings(rows: list[dict[str, Any]], flat: list[dict[str, Any]]) -> pd.DataFrame:
    """The table, with a column for each setting in which two runs differ."""
    if all("seed" in values for values in flat if values):
        flat = [{name: value for name, value in values.items() if name not in _SEEDS} for values in flat]
    paths = dict.fromkeys(path for values in flat for path in values)
    known = [values for values in flat if values]
    differing = [path for path in paths if len({json.dumps(values.get(path)) for values in known}) > 1]
    whole = []
    for row, values in zip(rows, flat, strict=True):
        settings = {path: _plain(values.get(path)) for path in differing}
        first = {name: row[name] for name in ("run", "state", "error")}
        whole.append(first | settings | {name: value for name, value in row.items() if name not in first})
    return pd.DataFrame(whole)


def _flat(config: RunConfig) -> dict[str, Any]:
    """Path -> value; `seed` replaces the three seeds if `--seed` would set them."""
    flat = {f"{part}.{name}": value for part, values in config.to_dict().items() for name, value in values.items()}
    seed = config.train.init_seed // 3
    return flat | ({"seed": seed} if config.train.with_seed(seed) == config.train else {})


def _plain(value: Any) -> Any:
    """A setting as a cell: lists as JSON."""
    return json.dumps(value) if isinstance(value, list | dict) else value
