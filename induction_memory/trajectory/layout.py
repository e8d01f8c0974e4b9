"""The names of the files of a trajectory, and which files are surely its own.

manifest.json           what it is (manifest.py)
metrics.jsonl           one line per step (rows.py)
frozen.safetensors      parameters that never change
grafts.safetensors      matrices to graft, in the order of train.grafts
trained.safetensors     once finished: every other parameter, [step, ...]
rounded.safetensors     of a thinned run: the steps that were kept rounded (rounded.py)
optimizer.safetensors   once finished: the optimiser's state, [step, ...]
steps/00000300.safetensors   while training: weights and, under optimizer/, the optimiser's state of one step
latest.safetensors           while training: the same, of the latest state to resume from
.NAME.part              a file that is being written
.lock                   held by the process that trains
"""

import re
from pathlib import Path

MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
FROZEN = "frozen.safetensors"
GRAFTS = "grafts.safetensors"
TRAINED = "trained.safetensors"
OPTIMIZER = "optimizer.safetensors"
ROUNDED = "rounded.safetensors"
LATEST = "latest.safetensors"
LOCK = ".lock"
STEPS = "steps"
OPTIMIZER_PREFIX = "optimizer/"

PIECES = (FROZEN, GRAFTS, TRAINED, ROUNDED, OPTIMIZER, METRICS)
"""The files that a manifest may list."""
FILES = (MANIFEST, LATEST, *PIECES)
_STEP = re.compile(r"\d{8,}\.safetensors")


def step_path(folder: Path, step: int) -> Path:
    """The file of one step while training."""
    return folder / STEPS / f"{step:08d}.safetensors"


def step_files(folder: Path) -> list[Path]:
    """The files of steps, in order."""
    found = [path for path in (folder / STEPS).glob("*.safetensors") if _STEP.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem))


def stored_steps(folder: Path) -> list[int]:
    """The steps that have a file, in order."""
    return [int(path.stem) for path in step_files(folder)]


def part_path(path: Path) -> Path:
    """Where a file is written before it gets its name."""
    return path.with_name(f".{path.name}.part")


def parts(folder: Path) -> list[Path]:
    """What interrupted writes have left behind, of files of this format alone."""
    own = [part_path(folder / name) for name in FILES]
    steps = [p for p in (folder / STEPS).glob(".*.part") if _STEP.fullmatch(p.name[1 : -len(".part")])]
    return [path for path in [*own, *steps] if path.is_file() and not path.is_symlink()]
