"""Judge the claims from shipped files: which numbers are measured again, and which come from sealed records.

Weights ship for a few runs, thinned to some steps, and the records of all runs ship beside them. For a run with
weights, the metrics are read from the trajectory, and the last step and the recalls at all exact (not rounded) steps
are measured again. Everything else comes from the records, whose files have checksums.

`audit` notes which numbers each row of the table of claims reads. A row is "recomputed" if all its numbers were
measured again, "sealed" if one of them comes from an intact record, and "seal broken" if one comes from a record that
was changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd

from induction_memory.field_docs import field_docs
from induction_memory.paper import records as record_files
from induction_memory.paper.claims import CLAIMS
from induction_memory.paper.claims.claim import COLUMNS, Claim, measured
from induction_memory.paper.measurement import make_record
from induction_memory.paper.plan import FIGURES, TRAJECTORIES, PaperRun, jobs
from induction_memory.paper.records import Record, Records, after
from induction_memory.terminal import Progress, track
from induction_memory.trajectory.manifest import MANIFEST
from induction_memory.trajectory.search import SHIPPED, find, search_path
from induction_memory.trajectory.trajectory import Trajectory, load

AGREE = 1e-5
"""Largest difference between a record and its trajectory due to rounding: records have seven digits."""


SOURCES = ("recomputed", "sealed", "seal broken")


@field_docs
@dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit."""

    verdicts: pd.DataFrame
    """One row per measurement, with its source."""
    compared: pd.DataFrame
    """One row per shipped trajectory: its record, its steps, the largest difference between the two."""
    broken: list[str]
    """Records whose files differ from their checksums."""
    folder: Path
    """The folder of the records and trajectories."""
    missing: list[str] = field(default_factory=list)
    """Shipped trajectories that are missing."""

    @property
    def summary(self) -> str:
        """One line of at most 80 characters: how many rows hold, and where their numbers come from."""
        verdicts, sources = (self.verdicts[column].tolist() for column in ("verdict", "source"))
        words = {"does not hold": "do not", "undecided": "undecided", "no run": "without a run"}
        held = [f"{verdicts.count('holds')} of {len(verdicts)} hold"]
        held += [f"{verdicts.count(other)} {word}" for other, word in words.items() if other in verdicts]
        read = [f"{sources.count(source)} {source}" for source in SOURCES if source in sources]
        return "; ".join([*filter(None, map(", ".join, (held, read))), f"{len(self.problems)} problems"])

    @property
    def problems(self) -> list[str]:
        """Why the audit fails, one line each; none if it passes."""
        without = self.verdicts["verdict"].tolist().count("no run")
        unchecked = f"{without} of {len(self.verdicts)} measurements could not be checked: no run in {self.folder}"
        apart = self.compared.loc[~(self.compared["largest difference"] <= AGREE)]
        return [
            *([unchecked] if without else []),
            *(f"{name}: not in {self.folder}, so it was not measured again" for name in self.missing),
            *(f"{name}: its record differs from its checksum" for name in self.broken),
            *(
                f"{row['trajectory']}: differs from its record by {row['largest difference']:.3g} ({row['where']})"
                for row in apart.to_dict("records")
            ),
        ]


@dataclass(frozen=True, eq=False)
class AuditedRecord(Record):
    """A record that notes in `sealed_reads` each read of a number that was not measured again."""

    anew: frozenset[str] = frozenset()
    """The parts that were measured again: "metrics", "last", "row 0" ..."""
    sealed_reads: list[str] = field(default_factory=list)
    """The record's name, once per read; one list for all records of an audit."""

    def _reads(self, *parts: str) -> None:
        if not self.anew.issuperset(parts):
            self.sealed_reads.append(self.name)


def audit(folder: Path | None = None, figures: Sequence[int] = tuple(FIGURES), *, progress: "Progress" = None) -> Audit:
    """The claims about some figures, from the trajectories and sealed records in a folder, by default the shipped ones.

    Only the trajectories of runs that these figures show are measured. The checksums of all records are checked.
    """
    folder = sealed_folder() if folder is None else find(folder)
    planned = jobs(figures, "paper")
    shipped, shown = with_shipped(Records([]), planned, folder), {job.preset for job in planned}
    broken, reads, compared = record_files.broken_records(folder / record_files.FOLDER), [], []
    records = {name: _audited(record, None, reads) for name, record in shipped.items()}
    wanted = [name for name, preset in TRAJECTORIES.items() if preset in shown]
    there = [name for name in wanted if (folder / name / MANIFEST).exists()]
    for name in track(there, "measuring what ships", progress=progress):
        of, run = f"{TRAJECTORIES[name]}-seed-0", load(folder / name)
        if of not in shipped:
            compared.append((name, of, len(run.steps), np.inf, "no record of the preset as it is"))
            continue
        kept, away, where = shipped[of], np.inf, "configuration"
        if run.config == kept.config and np.isin(run.steps, kept.probes.index).all():
            anew = of_exact_steps(run, make_record(run, kept.name))
            away, where = distance(kept, anew)
            records[kept.name] = _audited(kept, anew, reads)
        compared.append((name, kept.name, len(run.steps), away, where))
    columns = ["trajectory", "record", "steps", "largest difference", "where"]
    chosen = [claim for claim in CLAIMS.values() if claim.figure in figures]
    verdicts = _verdicts(chosen, Records(records.values()), reads, broken)
    named = sorted(broken) + [f"heads/{file}" for file in record_files.broken_files(folder / record_files.HEADS)]
    missing = [name for name in wanted if name not in there]
    return Audit(verdicts, pd.DataFrame(compared, columns=columns), named, folder, missing)


def sealed_folder() -> Path:
    """The first folder of the search path with records, or else the source tree's."""
    found = [place for place in search_path() if (place / record_files.FOLDER).is_dir()]
    return found[0] if found else SHIPPED


def with_shipped(records: Records, planned: Sequence[PaperRun], folder: Path = SHIPPED) -> Records:
    """The record of each planned job: from `records`, or else the shipped one if its settings are equal."""
    shipped, found = record_files.read_all(folder / record_files.FOLDER), []
    for job in planned:
        if job.name in records:
            found.append(records[job.name])
        elif job.name in shipped and shipped[job.name].config == job.config:
            found.append(shipped[job.name])
    return Records(found)


def distance(kept: Record, anew: Record) -> tuple[float, str]:
    """Largest difference between a record and a new measurement, and its column; relative for values above 1.

    Measures of the last step that the record lacks are not compared.
    """
    before, now = (record.metrics.set_index("step") for record in (kept, anew))
    tables = [
        (kept.probes.reindex(index=anew.probes.index, columns=anew.probes.columns), anew.probes),
        (before.reindex(index=now.index, columns=now.columns), now),
        (pd.DataFrame([kept.last]), pd.DataFrame([anew.last]).reindex(columns=list(kept.last))),
    ]
    away = {}
    for old, new in tables:
        for column in new.columns:
            a, b = old[column].to_numpy(float), new[column].to_numpy(float)
            if len(a) != len(b) or (np.isnan(a) != np.isnan(b)).any():
                away[column] = np.inf
            elif np.isfinite(b).any():
                away[column] = float(np.nanmax(np.abs(a - b) / np.maximum(1, np.abs(b))))
    where = max(away, key=lambda column: away[column])
    return away[where], where


def of_exact_steps(run: Trajectory, record: Record) -> Record:
    """The record without the recalls at rounded steps, where rounding may change whether an association is recalled."""
    return replace(record, probes=record.probes.drop(index=run.rounded.tolist()))


def _audited(kept: Record, anew: Record | None, reads: list[str]) -> AuditedRecord:
    """The record with the numbers that were measured again."""
    known = {entry.name: getattr(kept, entry.name) for entry in fields(Record)}
    if anew is None:
        return AuditedRecord(**known, sealed_reads=reads)
    probes = kept.probes.copy()
    probes.loc[anew.probes.index, anew.probes.columns] = anew.probes
    rows = {f"row {probes.index.get_loc(step)}" for step in anew.probes.index}
    metrics = after(kept.metrics, anew.metrics)
    curves = {"metrics"} if len(metrics) == len(anew.metrics) else set()
    fresh = known | {"metrics": metrics, "last": anew.last, "errors": anew.errors, "probes": probes}
    return AuditedRecord(**fresh, anew=frozenset({*curves, "last", *rows}), sealed_reads=reads)


def _verdicts(claims: Sequence[Claim], records: Records, reads: list[str], broken: set[str]) -> pd.DataFrame:
    """The table of claims with the source of each row."""
    rows = []
    for claim in claims:
        reads.clear()
        for row in measured(claim, records):
            source = "seal broken" if broken.intersection(reads) else "sealed" if reads else "recomputed"
            rows.append((*row, "" if row[-1] == "no run" else source))
            reads.clear()
    return pd.DataFrame(rows, columns=[*COLUMNS, "source"])
