"""The names of the files of a trajectory.

manifest.json           what it is (manifest.py)
metrics.jsonl           one line per step (rows.py)
frozen.safetensors      parameters that never change
grafts.safetensors      matrices to graft, in the order of train.grafts
trained.safetensors     once finished: every other parameter, [step, ...]
rounded.safetensors     in a thinned run: the steps that were kept rounded (tensors.py)
optimizer.safetensors   once finished: the optimiser's state, [step, ...]
steps/00000300.safetensors   while training: weights/NAME and the optimiser's optimizer/NAME of one step
latest.safetensors           while training: the same for the latest state, to resume from
.PROCESS-NUMBER.part    a file that is being written
.lock                   held by the process that trains
.cache/                 what analyses have kept; it may be deleted at any time
"""

import re
from pathlib import Path

from induction_memory.errors import InputError

MANIFEST = "manifest.json"
CONFIG = "config.json"
"""Of an exported step, and of others' checkpoints."""
METRICS = "metrics.jsonl"
FROZEN = "frozen.safetensors"
GRAFTS = "grafts.safetensors"
TRAINED = "trained.safetensors"
OPTIMIZER = "optimizer.safetensors"
ROUNDED = "rounded.safetensors"
LATEST = "latest.safetensors"
LOCK = ".lock"
STEPS = "steps"
STATE_WEIGHTS, STATE_OPTIMIZER = "weights/", "optimizer/"
"""What the names in the file of a single step begin with."""

PIECES = (FROZEN, GRAFTS, TRAINED, ROUNDED, OPTIMIZER, METRICS)
"""The files that a manifest may list."""
FILES = (MANIFEST, LATEST, *PIECES)
STEP_FILE = re.compile(r"\d{8,}\.safetensors")


def step_path(folder: Path, step: int) -> Path:
    """The file of one step while training."""
    return folder / STEPS / f"{step:08d}.safetensors"


def step_files(folder: Path) -> dict[int, Path]:
    """The steps that have a file of their own, in order, and the file of each."""
    found = {int(path.stem): path for path in (folder / STEPS).glob("*.safetensors") if STEP_FILE.fullmatch(path.name)}
    return dict(sorted(found.items()))


def require_begun(folder: Path, resume: bool | str, field: str = "out") -> None:
    """Refuse a folder in which a run has begun, unless it is to be resumed, and one in which none has if it is."""
    begun = (folder / MANIFEST).exists()
    if begun and resume is False:
        expected = f"a new or an empty folder (or --resume to go on), got a run in {str(folder)!r}"
        raise InputError(f"{field}: expected {expected}", entry="another-run")
    if not begun and resume is True:
        got = f"{str(folder)!r}, in which none has begun (leave --resume out to begin one)"
        raise InputError(f"{field}: expected the folder of a run to resume, got {got}")
