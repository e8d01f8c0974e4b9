"""What the rounding of shipped steps (`thin(..., rounded=True)`) does to a run: rounds it and measures the difference.

    python analyses/rounding.py four-heads

Per run and step: the largest change of any recall, of any attention weight and of the loss, the mean change of a logit,
and the part of the positions whose most likely token changes. The steps of the run must be exact.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
import tyro

import induction_memory as im
from induction_memory import Trajectory, thin
from induction_memory.errors import require, run_script
from induction_memory.terminal import show


def changes(exact: Trajectory, rounded: Trajectory, step: int, sequences: int) -> dict[str, float]:
    """What the rounding changes at one step, on fresh sequences."""
    batch = im.sample(exact.task, sequences, im.task.step_rng(exact.config.train.eval_seed, 0))
    found = []
    for run in (exact, rounded):
        with torch.no_grad():
            found.append(run.model(step).run_with_cache(batch.tokens, names_filter=lambda n: n.endswith("pattern")))
    (a, seen), (b, seen_after) = found
    recalls = [im.probes.recall(run, step=[step]).to_numpy() for run in (exact, rounded)]
    losses = [torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()) for logits in (a, b)]
    return {
        "step": step,
        "recall": float(np.nanmax(np.abs(recalls[0] - recalls[1]))),
        "attention": max(float((seen[name] - seen_after[name]).abs().max()) for name in seen),
        "loss": float((losses[0] - losses[1]).abs()),
        "mean logit": float((a - b).abs().mean()),
        "most likely token": float((a.argmax(-1) != b.argmax(-1)).float().mean()),
    }


def main(run: tyro.conf.Positional[str], /, steps: tuple[int, ...] = (), sequences: int = 32) -> None:
    """Print the table.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        steps: stored steps that are rounded; all but the last by default.
        sequences: fresh sequences to compare on.
    """
    exact = im.load(run)
    require(not len(exact.rounded), "run", "a run whose steps are exact", f"{len(exact.rounded)} rounded ones")
    chosen = list(steps) or exact.steps.tolist()[:-1]
    with TemporaryDirectory() as folder:
        last = int(exact.steps[-1])
        rounded = thin(exact, Path(folder) / exact.name, sorted({*chosen, last}), rounded=True)
        show(pd.DataFrame([changes(exact, rounded, step, sequences) for step in chosen]))


if __name__ == "__main__":
    run_script(main, __doc__)
