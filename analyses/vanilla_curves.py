"""Figure 2 with random triggers: does another block reach the paper's 95 %, and where are the errors that are left?

    python analyses/vanilla_curves.py --docs docs --runs runs/figure-2-blocks

writes docs/reproduction/figure-2-blocks.csv, the in-context accuracy of each run in means over 100 steps, with the
settings it was trained with. The shipped run `vanilla-random` is the first; the others are the folders in `runs`.
NAME.1 and NAME.2 are a run and its branch. Without `runs` the file stays as it is.
docs/reproduction/figure-2-errors.csv has the errors of `vanilla-random` by the position at which a trigger is first
seen.
"""

from functools import reduce
from itertools import groupby, pairwise
from pathlib import Path

import pandas as pd
import torch

import induction_memory as im
from induction_memory.errors import run_script
from induction_memory.experiment.run_config import RunConfig
from induction_memory.paper import records
from induction_memory.task.batch import masked_mean
from induction_memory.trajectory.search import SHIPPED

EVERY = 100
EDGES = (0, 8, 16, 32, 64, 128, 256)
SEQUENCES = 512


def block(config: RunConfig) -> dict[str, object]:
    """The settings in which the runs differ."""
    model, train = config.model, config.train
    assert isinstance(model, im.ModelConfig)
    return {
        "LayerNorm": "yes" if model.layer_norm else "no",
        "block": "parallel" if model.parallel_blocks else "sequential",
        "step size": train.learning_rate,
        "warm-up": train.warmup,
    }


def curve(metrics: pd.DataFrame) -> dict[str, float]:
    """Mean in-context accuracy per hundred steps, by the last step of each; hundreds that are not half full are left
    out.
    """
    step, accuracy = (metrics[name].to_numpy(float) for name in ("step", "accuracy_in_context"))
    found = {}
    for end in range(EVERY, int(step[-1]) + EVERY, EVERY):
        here = accuracy[(step > end - EVERY) & (step <= end)]
        if len(here) >= EVERY / 2:
            found[str(end)] = round(float(here.mean()), 3)
    return found


def errors(sequences: int = SEQUENCES) -> pd.DataFrame:
    """Accuracy, its standard error, and the share of all errors, by the position of a trigger's first occurrence."""
    run = im.load("vanilla-random")
    batch, model = im.sample(run.task, sequences, im.task.step_rng(7, 0)), run.model(int(run.steps[-1]))
    with torch.no_grad():
        right = torch.cat([model(tokens).argmax(-1) for tokens in batch.tokens.split(16)]) == batch.targets
    first = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).int().argmax(-1)
    asked, rows = batch.group("in_context"), []
    for low, high in pairwise(EDGES):
        here = asked & (first >= low) & (first < high)
        value, error = masked_mean(right.float(), here)
        wrong = int((here & ~right).sum()) / int((asked & ~right).sum())
        numbers = (int(here.sum()), round(value.item(), 3), round(error.item(), 3), round(wrong, 3))
        rows.append((f"{low + 1} to {high}", *numbers))
    return pd.DataFrame(rows, columns=["first seen at", "positions", "accuracy", "standard error", "share of errors"])


def main(docs: Path = Path("docs"), runs: Path | None = None) -> None:
    """Write the tables.

    Args:
        docs: folder with reproduction/.
        runs: folder of trained runs.
    """
    folder = docs / "reproduction"
    errors().to_csv(folder / "figure-2-errors.csv", index=False)
    if runs is not None:
        shipped = records.read(SHIPPED / records.FOLDER / "figure-2-random-seed-0")
        rows = [{**block(shipped.config), **curve(shipped.metrics)}]
        for _, parts in groupby(sorted(runs.iterdir()), key=lambda path: path.stem):
            pieces = [im.load(path) for path in parts]
            metrics = reduce(records.after, [run.metrics for run in pieces])
            if found := curve(metrics):
                rows.append({**block(pieces[-1].config), **found})
        pd.DataFrame(rows).to_csv(folder / "figure-2-blocks.csv", index=False)


if __name__ == "__main__":
    run_script(main, __doc__)
