"""The tables behind docs/heads.md, as they ship: the page is made from them without training.

*.parquet     the tables of all runs (`heads.Identification`)
study.json    the configuration, the command, the in-context accuracy of each run
SHA256SUMS    the checksum of every file, in the form that `sha256sum -c` reads
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from induction_memory.errors import InputError
from induction_memory.experiment.run_config import RunConfig
from induction_memory.heads import Identification
from induction_memory.heads.study_page import page
from induction_memory.reproduction import plan, record_files

FOLDER = f"{record_files.FOLDER}/heads"
STUDY = "study.json"


@dataclass(frozen=True, eq=False)
class HeadStudy:
    """The tables of the study, and the other facts on its page."""

    found: Identification
    config: RunConfig
    command: str
    accuracies: dict[str, float]

    def page(self, records: Path) -> str:
        """docs/heads.md; `records` is the folder with Figure 11's own run."""
        last = record_files.read(records / f"{plan.FOUR_HEADS}-seed-0").last
        figure_11 = {role: last[f"effective_heads_{role}"] for role in ("previous-token", "induction")}
        return page(self.found, self.config, list(self.accuracies.values()), self.command, "heads", figure_11)


def write(study: HeadStudy, folder: Path) -> None:
    """Write the study to a folder, sealed."""
    study.found.save(folder)
    about = {"command": study.command, "config": study.config.to_dict(), "accuracies": study.accuracies}
    (folder / STUDY).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    lines = [f"{_checksum(path)}  {path.name}\n" for path in _files(folder)]
    (folder / record_files.SEALS).write_text("".join(lines), encoding="utf-8")


def read(folder: Path) -> HeadStudy:
    """The study that `write` wrote."""
    try:
        about = json.loads((folder / STUDY).read_text(encoding="utf-8"))
        found = Identification.read(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected the tables of the study of heads, got {error}") from error
    return HeadStudy(found, RunConfig.from_dict(about["config"]), about["command"], about["accuracies"])


def broken_seals(folder: Path) -> list[str]:
    """Files that are missing, not sealed, or differ from their checksums; none if there is no study."""
    if not folder.exists():
        return []
    seals = folder / record_files.SEALS
    lines = seals.read_text(encoding="utf-8").splitlines() if seals.exists() else []
    sums = {file: checksum for checksum, _, file in (line.partition("  ") for line in lines)}
    there = {path.name: _checksum(path) for path in _files(folder)}
    return sorted(f"heads/{name}" for name in sums.keys() | there.keys() if sums.get(name) != there.get(name))


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix == ".parquet" or path.name == STUDY]


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
