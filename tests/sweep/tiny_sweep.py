"""A sweep of four runs of 60 steps, each long enough to be killed in its middle, and what a serial run makes of it."""

import subprocess
import sys
from pathlib import Path

from induction_memory.sweep.plan import PlannedRun, read
from tests.training.test_resume import content

FILE = """
preset = "demo"
seeds = [0, 1]
[set]
task.length = 16
model.n_ctx = 16
model.d_model = 16
train.batch_size = 16
train.steps = 60
train.checkpoints = "every 20"
train.resume_every = 2
[grid]
task.k = [1, 3]
"""

SERIAL = """
import sys
from pathlib import Path
from induction_memory.sweep.plan import read
from induction_memory.training.run import start

for run in read(sys.argv[1]).runs:
    start(run.config, Path(sys.argv[2]) / run.name, progress=False, command=run.command)
"""


def write(folder: Path, text: str = FILE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "file.toml").write_text(text)
    return folder / "file.toml"


def serial(file: Path, folder: Path) -> dict[str, dict[str, bytes]]:
    """Every run of the file trained one after the other in one process: name -> content of its folder."""
    subprocess.run([sys.executable, "-c", SERIAL, str(file), str(folder)], check=True)
    return contents(read(file).runs, folder)


def contents(runs: tuple[PlannedRun, ...], folder: Path) -> dict[str, dict[str, bytes]]:
    return {run.name: content(folder / run.name) for run in runs}


def lines(folder: Path) -> int:
    """Steps that a run has done."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def is_in_the_middle(folder: Path) -> bool:
    return 4 < lines(folder) < 60


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """The finished runs, and which file their manifest is: a run that is trained again would have another."""
    found = {}
    for path in folder.glob("*/manifest.json"):
        if '"state": "finished"' in path.read_text():
            found[path.parent.name] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found
