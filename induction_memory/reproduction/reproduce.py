"""The whole reproduction: train what is missing, measure, draw, judge, and write the page.

At the paper's scale the records of all runs and the trajectories of a few ship with the repository; `check` recomputes
the claims from those alone, and compares the shipped records with what the shipped weights give.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from induction_memory import probes
from induction_memory.errors import require
from induction_memory.reproduction import claims
from induction_memory.reproduction import records as store
from induction_memory.reproduction.drawing import Material, draw
from induction_memory.reproduction.page import page
from induction_memory.reproduction.plan import FIGURES, Job, Scale, describe, jobs
from induction_memory.reproduction.records import MissingRunError, Records
from induction_memory.reproduction.shipping import TRAJECTORIES
from induction_memory.reproduction.training import RECORDS, gather
from induction_memory.trajectory.trajectory import SHIPPED, Trajectory, load

AGREE = 1e-6  # records keep seven digits


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came out: the verdicts, the figures drawn, and why others were not."""

    verdicts: pd.DataFrame
    pictures: dict[int, Path]
    reasons: dict[int, str]
    page: Path


def reproduce(
    chosen: Sequence[int],
    scale: Scale,
    *,
    runs: Path = Path("runs"),
    out: Path = Path("reproduction"),
    workers: int = 2,
    train: bool = True,
    quiet: bool = False,
) -> Reproduction:
    """Figures and claims at a scale, from runs in `runs/SCALE`, into `out`: a page and a folder of pictures.

    Where nothing is to be trained, what ships stands in for the runs of the paper's scale that are not there.
    """
    require(workers >= 1, "--workers", "1 or more", workers)
    require(out.is_dir() or not out.exists(), "--out", "a folder", repr(str(out)))
    folder, planned = runs / scale, jobs(chosen, scale)
    records = gather(planned, folder, workers=workers, train=train, quiet=quiet)
    if not train and scale == "paper":
        records = _with_shipped(records, planned)
    by_preset = {job.preset: job for job in planned if job.seed == 0}
    given = Material(records, lambda preset: _trained(by_preset[preset], folder, records), describe(scale))
    pictures, reasons = {}, {}
    for figure in chosen:
        try:
            pictures[figure] = draw(figure, given, out / "reproduction")
        except MissingRunError as missing:
            reasons[figure] = str(missing)
    wanted = [claim.name for claim in claims.CLAIMS.values() if claim.figure in chosen]
    verdicts = claims.check(records, wanted)
    links = {figure: path.relative_to(out).as_posix() for figure, path in pictures.items()}
    written = out / "reproduction.md"
    out.mkdir(parents=True, exist_ok=True)
    written.write_text(page(chosen, scale, records, verdicts, links, reasons), encoding="utf-8")
    return Reproduction(verdicts, pictures, reasons, written)


def check() -> tuple[pd.DataFrame, pd.DataFrame]:
    """All claims from what ships, and for each shipped trajectory how far its recalls are from its record's."""
    records = _with_shipped(Records([]), jobs(list(FIGURES), "paper"))
    return claims.check(records), compare(records)


def compare(records: Records) -> pd.DataFrame:
    """Shipped trajectories against their records: the recalls of the stored steps, measured anew."""
    rows = []
    for name, what in TRAJECTORIES.items():
        if not (SHIPPED / name).exists() or f"{what.preset}-seed-0" not in records:
            continue
        run, record = load(SHIPPED / name), records.one(what.preset)
        measured = probes.wide(probes.table(run, store.RECALLS, cached=False))
        away = np.inf  # a step that the record does not have
        if run.config == record.config and measured.index.isin(record.probes.index).all():
            kept = record.probes.reindex(index=measured.index, columns=measured.columns)
            away = float(np.nanmax(np.abs(measured.to_numpy() - kept.to_numpy())))
        rows.append((name, record.name, len(run.steps), away))
    return pd.DataFrame(rows, columns=["trajectory", "record", "steps", "largest difference"])


def _with_shipped(records: Records, planned: Sequence[Job]) -> Records:
    """In the order of the plan, the record of each job: its own or, of the same settings, the shipped one."""
    shipped, found = store.read_all(SHIPPED / RECORDS), []
    for job in planned:
        if job.name in records:
            found.append(records[job.name])
        elif job.name in shipped and shipped[job.name].config == job.config:
            found.append(shipped[job.name])
    return Records(found)


def _trained(job: Job, folder: Path, records: Records) -> Trajectory:
    """The trajectory behind a record: the run's own, or the shipped one."""
    shipped = [SHIPPED / name for name, what in TRAJECTORIES.items() if what.preset == job.preset]
    for place in (folder / job.name, *shipped):
        if job.name in records and (place / "manifest.json").exists():
            run = load(place)
            if run.finished and run.config == job.config:
                return run
    raise MissingRunError(job.name)
