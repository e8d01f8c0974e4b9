"""Records on the disk: one folder per run, with three files.

    record.json   configuration, command, seconds, fingerprint of the trajectory, numbers of the last step
    metrics.csv   one row per training step, without the norms of weights and gradients
    probes.csv    one row per stored step

The folder of records that ships is sealed: its file SHA256SUMS holds the checksum of every file in it, in the form that
`sha256sum -c` reads.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd

from induction_memory.errors import DamagedError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.files import write_file
from induction_memory.reproduction.records import Record, Records

FOLDER = "records"
FILES = ("record.json", "metrics.csv", "probes.csv")
SEALS = "SHA256SUMS"
DIGITS = 7


def write(record: Record, folder: Path) -> None:
    """Write a record to a folder of its own."""
    about = {
        "name": record.name,
        "command": record.command,
        "seconds": None if record.seconds is None else round(record.seconds),
        "fingerprint": record.fingerprint,
        "config": record.config.to_dict(),
        "last": {name: _rounded(value) for name, value in record.last.items()},
        "errors": {name: _rounded(value) for name, value in record.errors.items()},
    }
    write_file(folder / "metrics.csv", _csv(record.metrics, index=False))
    write_file(folder / "probes.csv", _csv(record.probes, index=True))
    write_file(folder / "record.json", json.dumps(about, indent=1) + "\n")


def read(folder: Path) -> Record:
    """The record in a folder."""
    try:
        about = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        metrics = pd.read_csv(folder / "metrics.csv")
        tables = pd.read_csv(folder / "probes.csv", index_col="step")
        last, errors = (
            {name: float("nan" if value is None else value) for name, value in about.get(part, {}).items()}
            for part in ("last", "errors")
        )
        config, seconds = RunConfig.from_dict(about["config"]), about["seconds"]
        spent = None if seconds is None else float(seconds)
        name, command, fingerprint = (about[field] for field in ("name", "command", "fingerprint"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedError(folder, f"no record of a run in {', '.join(FILES)}: {error!r}") from error
    return Record(name, config, command, spent, fingerprint, metrics, tables, last, errors)


def read_all(folder: Path) -> Records:
    """All records in a folder."""
    return Records([read(path.parent) for path in sorted(folder.glob("*/record.json"))])


def seal(folder: Path) -> None:
    """Write the checksum of every record in a folder."""
    files = [path for path in sorted(folder.glob("*/*")) if path.name in FILES]
    lines = [f"{_checksum(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    write_file(folder / SEALS, "".join(lines))


def broken_seals(folder: Path) -> set[str]:
    """Names of the records in a sealed folder with a file that is missing or differs from its checksum."""
    seals = folder / SEALS
    lines = seals.read_text(encoding="utf-8").splitlines() if seals.exists() else []
    sums = {file: checksum for checksum, _, file in (line.partition("  ") for line in lines)}
    names = {path.parent.name for path in folder.glob("*/record.json")} | {path.split("/")[0] for path in sums}
    return {name for name in names if not all(_is_sealed(folder, f"{name}/{file}", sums) for file in FILES)}


def _is_sealed(folder: Path, file: str, sums: dict[str, str]) -> bool:
    return (folder / file).exists() and sums.get(file) == _checksum(folder / file)


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _rounded(value: float) -> float | None:
    return None if not np.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _csv(table: pd.DataFrame, index: bool) -> str:
    return table.dropna(axis="columns", how="all").to_csv(index=index, float_format=f"%.{DIGITS}g")
