"""The names of the files of a trajectory.

manifest.json           what it is (manifest.py)
metrics.jsonl           a line a step (rows.py)
frozen.safetensors      parameters that never change
grafts.safetensors      matrices to graft, in the order of train.grafts
trained.safetensors     once finished: every other parameter, [step, ...]
optimizer.safetensors   once finished: the optimiser's state, [step, ...]
steps/00000300.safetensors   while training: weights and, under optimizer/, the optimiser's state of one step
latest.safetensors           while training: the same, of the latest state to resume from
"""

from pathlib import Path

FROZEN = "frozen.safetensors"
GRAFTS = "grafts.safetensors"
TRAINED = "trained.safetensors"
OPTIMIZER = "optimizer.safetensors"
LATEST = "latest.safetensors"
STEPS = "steps"
OPTIMIZER_PREFIX = "optimizer/"


def step_path(folder: Path, step: int) -> Path:
    """The file of one step while training."""
    return folder / STEPS / f"{step:08d}.safetensors"


def stored_steps(folder: Path) -> list[int]:
    """The steps that have a file, in order."""
    found = (folder / STEPS).glob("*.safetensors")
    return sorted(int(path.stem) for path in found if path.stem.isdecimal())
