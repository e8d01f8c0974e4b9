"""The whole reproduction: train what is missing, measure, draw, judge, and write the page.

At the paper's scale the records of all runs and the trajectories of a few ship with the repository; `audit.audit`
judges the claims from those alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from induction_memory.files import require_folder, write_file
from induction_memory.reproduction import claims
from induction_memory.reproduction.audit import with_shipped
from induction_memory.reproduction.drawing import Material, draw
from induction_memory.reproduction.page import page
from induction_memory.reproduction.plan import Job, Scale, describe, jobs
from induction_memory.reproduction.records import MissingRunError, Records
from induction_memory.reproduction.shipping import TRAJECTORIES
from induction_memory.reproduction.training import gather
from induction_memory.sweep.launch import require_workers
from induction_memory.trajectory.search import SHIPPED
from induction_memory.trajectory.trajectory import Trajectory, load


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came out: the verdicts, the figures drawn, and why others were not."""

    verdicts: pd.DataFrame
    pictures: dict[int, list[Path]]
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

    Without training, shipped records and trajectories replace missing runs of the paper's scale.
    """
    require_workers(workers)
    out = require_folder(out, "--out")
    folder, planned = require_folder(Path(runs) / scale, "--runs"), jobs(chosen, scale)
    records = gather(planned, folder, workers=workers, train=train, quiet=quiet)
    if not train and scale == "paper":
        records = with_shipped(records, planned)
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
    links = {figure: [path.relative_to(out).as_posix() for path in paths] for figure, paths in pictures.items()}
    written = out / "reproduction.md"
    linked = (out / "theory.md").exists()
    write_file(written, page(chosen, scale, records, verdicts, links, reasons, linked=linked), "--out")
    return Reproduction(verdicts, pictures, reasons, written)


def _trained(job: Job, folder: Path, records: Records) -> Trajectory:
    """The trajectory behind a record: the run's own, or the shipped one."""
    shipped = [SHIPPED / name for name, what in TRAJECTORIES.items() if what.preset == job.preset]
    for place in (folder / job.name, *shipped):
        if job.name in records and (place / "manifest.json").exists():
            run = load(place)
            if run.finished and run.config == job.config:
                return run
    raise MissingRunError(job.name)
