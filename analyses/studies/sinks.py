"""Sinks: a start token, a head that copies after three triggers only, and where it looks at all other times.

    python analyses/studies/sinks.py --runs runs/sinks --docs docs/studies                          # ten minutes
    python analyses/studies/sinks.py --scale full --runs runs/sinks-full --out runs/sinks-results   # two hours

Writes `sinks.csv`, one row per optimiser, seed and step.
"""

from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from base_runs import Scale, seeds_of
from matplotlib.figure import Figure
from over_seeds import over_seeds

import induction_memory as im
from induction_memory.errors import run_script

RESULTS = Path(__file__).parent / "results"
TEXT = im.BigramTask()
OPTIMIZERS: dict[Literal["adamw", "sgd"], float] = {"adamw": 3e-3, "sgd": 0.3}


@im.task.register
@dataclass(frozen=True)
class Backcopy:
    """Bigrams after a start token (id 65); after one of three fixed triggers, the token before it comes again."""

    name: ClassVar[str] = "study-backcopy"
    main: ClassVar[str] = "trigger"
    n_inputs: ClassVar[int] = 66
    n_outputs: ClassVar[int] = 66
    length: int = 64

    @property
    def triggers(self) -> np.ndarray:
        letters = [i for i, token in enumerate(TEXT.vocabulary) if token.isalpha()]
        return np.array(sorted(letters, key=lambda i: -TEXT.unigram[i])[:3])

    def sample(self, n: int, rng: np.random.Generator) -> im.task.Batch:
        rows, triggers = np.vstack([TEXT.bigram, TEXT.unigram]).cumsum(1), self.triggers
        tokens = np.full((n, self.length + 1), 65)
        for t in range(self.length):
            drawn = (rng.random((n, 1)) * rows[tokens[:, t], -1:] >= rows[tokens[:, t]]).sum(1)
            copies = np.isin(tokens[:, t], triggers) & (t > 1)
            tokens[:, t + 1] = np.where(copies, tokens[:, max(t - 1, 0)], drawn)
        z = torch.from_numpy(tokens)
        trigger, late = torch.isin(z[:, :-1], torch.from_numpy(triggers)), torch.arange(self.length) > 1
        groups = {"trigger": trigger & late, "other": ~trigger & late}
        return im.task.Batch(z[:, :-1], z[:, 1:], torch.ones_like(trigger), groups, self.main)


def sink(at: Any) -> dict[str, float]:
    """Mean weight on the first position at triggers and at other queries, of triggers on the token before, and the
    norm of what the head writes from the first position, divided by its mean over all later positions."""
    recording = at.runner.record(at.batch.tokens)
    pattern, groups = recording.pattern(1)[:, 0], at.batch.groups
    found = {name: float(pattern[..., 0][groups[name]].mean()) for name in ("trigger", "other")}
    before = pattern.diagonal(-1, 1, 2)[groups["trigger"][:, 1:]]
    written = (recording.at("L1H1.v") @ at.stack.memory("W_O1")[0, 0].mT).norm(dim=-1)
    return found | {"before": float(before.mean()), "value": float(written[:, 0].mean() / written[:, 1:].mean())}


def measured(
    runs: Path, optimizer: Literal["adamw", "sgd"], seed: int, length: int, steps: int, batch: int
) -> pd.DataFrame:
    """One run, trained if not in `runs`: the probe at every stored step, and means over the last 20 batches."""
    task: Any = Backcopy(length)
    model = im.ModelConfig.full(d_model=64, n_layers=1, layer_norm=True)
    how = im.experiment.TrainConfig(steps, batch, warmup=50, loss="all", checkpoints="every 20", threads=1)
    how = how.with_seed(seed).replace(optimizer=optimizer, learning_rate=OPTIMIZERS[optimizer])
    where = runs / f"{optimizer}-{seed}"
    run = im.train(task, model, out=where, resume="or start", progress=False, **asdict(how))
    found = im.measure(run, sink, step="all", batch=task.sample(64, im.task.step_rng(seed, 1)), progress=False)
    last = run.metrics[["loss", "accuracy_trigger"]].tail(20).mean()
    return found.assign(optimizer=optimizer, seed=seed, loss=last["loss"], accuracy=last["accuracy_trigger"])


def figure(table: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(9, 3.2), layout="constrained")
    panels = drawn.subplots(1, 3)
    for axes, kind in zip(panels, ("other", "trigger", "value"), strict=True):
        for optimizer, own in over_seeds(table, ["optimizer", "step"], kind).groupby("optimizer"):
            axes.plot(own["step"], own["mean"], label=optimizer)
            axes.fill_between(own["step"], own["low"], own["high"], alpha=0.2)
        weight = f"weight on the start token,\n{kind} queries"
        title = "value of the start token,\nothers = 1" if kind == "value" else weight
        axes.set(title=title, xlabel="step", ylim=(0, None if kind == "value" else 1))
    panels[0].legend(frameon=False, loc="lower right")
    return drawn


def main(runs: Path, scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Train what `runs` does not hold yet, write the tables to `out`, and with `docs` draw sinks.png there."""
    size = (64, 1000, 64) if scale == "reduced" else (256, 5000, 256)
    each = product(OPTIMIZERS, seeds_of(scale))
    table = pd.concat([measured(runs, optimizer, seed, *size) for optimizer, seed in each])
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "sinks.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(table).savefig(docs / "sinks.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
