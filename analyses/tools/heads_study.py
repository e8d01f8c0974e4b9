"""The study of heads across seeds: which runs it needs, how their heads are examined, and the tables that ship.

Independent seeds show what training decides by chance. Siblings of the first seed share its initial weights or its
data, and show which of the two decides. docs/heads.md is made from the tables that ship, without training:

    *.parquet     the tables of all runs (`heads.Identification`)
    study.json    the configuration, the command, the in-context accuracy of each run
    SHA256SUMS    the checksum of every file, in the form that `sha256sum -c` reads
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from induction_memory.errors import InputError
from induction_memory.experiment.presets import with_seed
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import write_figure, write_file
from induction_memory.heads.across_runs import DECIDES
from induction_memory.heads.identification import Identification, identify
from induction_memory.paper import plan as presets
from induction_memory.paper import records
from induction_memory.trajectory.trajectory import load

from . import heads_figures as figures
from .heads_page import page

TABLES = "heads"
"""Folder of the tables, beside the runs."""
STUDY = "study.json"
OTHER_SEED = 1000
"""Seeds of the siblings' own weights or data start here."""


def plan(config: RunConfig, seeds: int, siblings: int) -> dict[str, RunConfig]:
    """Suffix of a run's name -> run: independent seeds, then seed 0 with other data, and with other initial weights."""
    runs = {f"seed-{seed}": with_seed(config, seed) for seed in range(seeds)}
    first = runs["seed-0"].train
    for i in range(1, siblings + 1):
        runs[f"init-0-data-{i}"] = replace(config, train=replace(first, data_seed=OTHER_SEED + i))
        runs[f"init-{i}-data-0"] = replace(config, train=replace(first, init_seed=OTHER_SEED + i))
    return {name: run.with_settings(["train.threads=1"]) for name, run in runs.items()}


def train_and_examine(name: str, config: dict[str, Any], out: str, train: bool, readings: int, sequences: int) -> None:
    """Train one run in `out`, or resume it, and store the tables of its heads at `readings` steps.

    Nothing is stored if the run is missing or not finished. Tables of an unchanged run are kept. The arguments are
    plain values, as the jobs of a sweep need them.
    """
    wanted, folder, tables = RunConfig.from_dict(config), Path(out) / name, Path(out) / TABLES / name
    if train:
        from induction_memory.training.run import start

        start(wanted, folder, resume="or start", progress=False, command="python analyses/multihead.py")
    if not folder.exists() or not load(folder).finished:
        return
    run = load(folder)
    for path, (asked, there) in wanted.differences(run.config).items():
        raise InputError(f"{folder}: expected {path} = {asked!r}, got {there!r}")
    key = f"{run.fingerprint} {readings} {sequences}"
    if not (tables / "key").exists() or (tables / "key").read_text() != key:
        steps = run.steps[np.unique(np.linspace(0, len(run.steps) - 1, readings).round().astype(int))]
        identify(run, step=[int(step) for step in steps], sequences=sequences).save(tables)
        write_file(tables / "key", key)


def last_accuracy(folder: Path) -> float:
    """Mean in-context accuracy of a run's last twenty batches."""
    return float(np.nanmean(load(folder).metrics["accuracy_in_context"].to_numpy()[-20:]))


def draw(found: Identification, folder: Path) -> None:
    """The figures of the page."""
    first = found.runs["run"].tolist()[0]
    layers = int(found.runs["n_layers"].tolist()[0])
    shares, paths = (table.loc[(table["run"] == first).to_numpy()] for table in (found.shares, found.mediation))
    routes = [("k", 1, "previous token: through keys"), ("out", layers, "induction: on the output")]
    independent = found.stability.loc[(found.stability["relation"] == "independent").to_numpy()]
    drawn = {
        "roles": figures.role_map(found.last("roles")),
        "shares": figures.shared_work(found.carriers),
        "stability": figures.stability(independent),
        "identifiability": figures.identifiability(found.identifiability),
        "origins": figures.origins(found.origins, DECIDES),
        "mediation": figures.mediation(paths),
        "training": figures.over_training(shares, routes),
    }
    for name, figure in drawn.items():
        write_figure(figure, folder / f"{name}.png", dpi=130)


@dataclass(frozen=True, eq=False)
class HeadStudy:
    """The tables of the study, and the other facts on its page."""

    found: Identification
    config: RunConfig
    command: str
    accuracies: dict[str, float]

    def page(self, folder: Path) -> str:
        """docs/heads.md; `folder` has the record of Figure 11's own run."""
        last = records.read(folder / f"{presets.FOUR_HEADS}-seed-0").last
        figure_11 = {role: last[f"effective_heads_{role}"] for role in ("previous-token", "induction")}
        return page(self.found, self.config, list(self.accuracies.values()), self.command, "heads", figure_11)


def write(study: HeadStudy, folder: Path) -> None:
    """Write the study to a folder, sealed."""
    study.found.save(folder)
    about = {"command": study.command, "config": study.config.to_dict(), "accuracies": study.accuracies}
    write_file(folder / STUDY, json.dumps(about, indent=1) + "\n")
    records.seal(folder, [path.name for path in sorted(folder.iterdir()) if path.suffix == ".parquet"] + [STUDY])


def read(folder: Path) -> HeadStudy:
    """The study that `write` wrote."""
    try:
        about = json.loads((folder / STUDY).read_text(encoding="utf-8"))
        found = Identification.read(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected the tables of the study of heads, got {error}") from error
    return HeadStudy(found, RunConfig.from_dict(about["config"]), about["command"], about["accuracies"])
