"""Idle head: where the second head of shipped runs looks when there is nothing to copy.

    python analyses/studies/idle_head.py --docs docs/studies                # half a minute
    python analyses/studies/idle_head.py --scale full --out runs/idle       # two minutes

Writes `idle-head.csv`, one row per run and kind of query.
"""

from pathlib import Path

import pandas as pd
import torch
from base_runs import Scale
from matplotlib.figure import Figure

import induction_memory as im
from induction_memory.errors import run_script

RESULTS = Path(__file__).parent / "results"
RUNS = ("induction-alone", "random-triggers", "vanilla-random")


def measure(sequences: int) -> pd.DataFrame:
    """Mean weights of the second head from queries in the later half of the positions.

    `matched` is the weight on keys that follow an earlier occurrence of the query's token, `chance` their share of all
    keys. `first` and `itself` are weights on the first position and on the query, `position` is the largest mean weight
    on any one position, and `largest` the mean of each query's largest weight.
    """
    rows = []
    for name in RUNS:
        run = im.load(name)
        batch = run.task.sample(sequences, im.task.step_rng(run.config.train.eval_seed, 0))
        pattern = im.runner.record(run.model("last"), batch.tokens).pattern(2)[:, 0]
        keys, late = run.task.sources(batch)["induction"], torch.arange(run.task.length) >= run.task.length // 2
        chance = keys.sum(-1) / torch.arange(1, run.task.length + 1)
        matched, other, seen = (pattern * keys).sum(-1), batch.groups["global"] & late, keys.any(-1)
        queries = {
            "trigger": batch.groups["in_context"] & late,
            "other, seen": other & seen,
            "other, new": other & ~seen,
        }
        for kind, where in queries.items():
            own, itself = pattern[where], pattern.diagonal(0, 1, 2)[where]
            row = {"run": name, "queries": kind, "count": len(own), "matched": matched[where].mean().item()}
            row |= {
                "chance": chance[where].mean().item(),
                "first": own[:, 0].mean().item(),
                "itself": itself.mean().item(),
            }
            rows.append(row | {"position": own.mean(0).max().item(), "largest": own.max(-1).values.mean().item()})
    return pd.DataFrame(rows)


def figure(table: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(8, 3), layout="constrained")
    seen = table[table["chance"] > 0].groupby("run", sort=False)
    for axes, (name, own) in zip(drawn.subplots(1, 3, sharey=True), seen, strict=True):
        axes.bar(own["queries"], own["matched"], width=0.6, color="#2f6fb3", label="the head")
        axes.hlines(own["chance"], [-0.3, 0.7], [0.3, 1.3], color="black", label="equal attention")
        axes.set(title=name, ylim=(0, 1))
    drawn.axes[0].set_ylabel("weight on keys that follow\nthe query's token")
    drawn.axes[2].legend(frameon=False)
    return drawn


def main(scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Measure, write the table to `out`, and with `docs` draw idle-head.png there."""
    table = measure(64 if scale == "reduced" else 512)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "idle-head.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(table).savefig(docs / "idle-head.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
