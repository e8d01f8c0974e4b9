"""How cost grows: time and memory as length, dimension, heads, steps and runs double, and the exponent of the growth.

    make bench growth                                  the rows
    python -m bench.growth --write                     also the table and the picture of docs/growth.md

The cost of a size is c n^a once it is large. The exponent a is fitted on the last three sizes (least squares of
log cost on log n), because at small sizes the fixed costs hide it. Theory allows at most the exponent beside it. Every
size is measured in a fork of this process, with the imports done and one thread: the median processor time of a few
calls, which other work on the machine hardly changes, and the peak of its memory above what it held before.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch

import induction_memory as im
from bench.probes import write_synthetic
from bench.series import _forget_peak, _memory
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.building import build
from induction_memory.sweep.loop import look
from induction_memory.sweep.plan import read
from induction_memory.training.loop import train

PAGE = Path(__file__).parents[1] / "docs" / "growth.md"
PICTURE = PAGE.with_name("growth.png")
BEGIN, END = "<!-- measured by bench.growth -->", "<!-- end of what was measured -->"
REPEATS, FITTED = 3, 3
Call = Callable[[], Any]


def training_step(length: int = 128, d_model: int = 128, n_heads: int = 1) -> Call:
    """One step on 64 sequences."""
    task = im.BigramTask(length=length)
    model = build(im.ModelConfig.full(d_model=d_model, n_ctx=length, n_heads=n_heads))
    steps = train(task, model, TrainConfig(steps=10_000, batch_size=64, checkpoints="every 10000"))
    return lambda: next(steps)


def recall(d_model: int = 128, steps: int = 16) -> Call:
    """All recalls of a run on the disk."""
    folder = Path(tempfile.mkdtemp()) / "run"
    write_synthetic(folder, steps, d_model)
    return lambda: im.probes.recall(im.load(folder))


def ablation(length: int = 128, n_heads: int = 2, d_model: int = 128) -> Call:
    """Every head once, on 16 sequences."""
    task = im.BigramTask(length=length)
    model = build(im.ModelConfig.full(d_model=d_model, n_ctx=length, n_heads=n_heads))
    batch = task.sample(16, im.task.step_rng(0, 0))
    return lambda: im.ablate(model, batch, heads="all", kind="zero", task=task)


def page(steps: int = 4) -> Call:
    """The page of a run with this many steps."""
    folder = Path(tempfile.mkdtemp()) / "run"
    write_synthetic(folder, steps, 64)

    def draw() -> Any:
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # kept results would hide the measuring
        return im.report(im.load(folder), causal_steps=1, progress=False).html

    return draw


def sweep(runs: int = 100) -> Call:
    """Read a sweep's file and look at every folder; nothing is trained."""
    folder = Path(tempfile.mkdtemp())
    file = folder / "sweep.toml"
    file.write_text(f'preset = "demo"\nseeds = {list(range(runs))}\n')
    return lambda: look(read(file).runs, folder / "runs")


WORK: dict[str, Callable[..., Call]] = {f.__name__: f for f in (training_step, recall, ablation, page, sweep)}


@dataclass(frozen=True)
class Growth:
    """One work, and what doubles."""

    work: str
    doubles: str
    sizes: tuple[int, ...]
    allowed: float
    """The exponent of time that theory allows."""
    why: str


GROWTHS = (
    Growth("training_step", "length", (64, 128, 256, 512, 1024), 2, "attention compares every pair of positions"),
    Growth("training_step", "d_model", (64, 128, 256, 512, 1024), 2, "every matrix has d x d numbers"),
    Growth("training_step", "n_heads", (1, 2, 4, 8, 16), 1, "one attention pattern per head"),
    Growth("recall", "d_model", (64, 128, 256, 512, 1024), 2, "v^T W u for a fixed number of pairs"),
    Growth("recall", "steps", (16, 32, 64, 128, 256), 1, "each step is read once"),
    Growth("ablation", "length", (64, 128, 256, 512, 1024), 2, "attention compares every pair of positions"),
    Growth("ablation", "n_heads", (1, 2, 4, 8, 16), 2, "one forward per head, one pattern per head in it"),
    Growth("page", "steps", (4, 8, 16, 32, 64), 1, "each step is drawn once, up to the budget of the file"),
    Growth("sweep", "runs", (100, 200, 400, 800, 1600), 1, "each run's folder is looked at once"),
)


def measured(work: str, **size: int) -> dict[str, float]:
    """Median processor seconds of a call in this process, and bytes above what was held before."""
    call, times = WORK[work](**size), list[float]()
    _forget_peak()
    before = _memory("VmRSS")
    for _ in range(1 + REPEATS):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return {"seconds": median(times[1:]), "bytes": max(0.0, _memory("VmHWM") - before)}


def exponent(sizes: Any, cost: Any) -> float:
    """The slope of log cost over log size at the largest sizes; nan if nothing was measured.

    >>> round(exponent([1, 2, 4, 8], [5, 12, 48, 192]), 2)
    2.0
    """
    n, c = np.asarray(sizes, dtype=float)[-FITTED:], np.asarray(cost, dtype=float)[-FITTED:]
    return float(np.polyfit(np.log(n), np.log(c), 1)[0]) if (c > 0).all() else float("nan")


def table() -> pd.DataFrame:
    """One row per work and size."""
    torch.set_num_threads(1)
    for growth in GROWTHS:
        WORK[growth.work](**{growth.doubles: growth.sizes[0]})()  # imports what it needs
    found = []
    with get_context("fork").Pool(1, maxtasksperchild=1) as fresh:
        for growth in GROWTHS:
            for size in growth.sizes:
                row = {"work": growth.work, "doubles": growth.doubles, "size": size}
                found.append(row | fresh.apply(measured, (growth.work,), {growth.doubles: size}))
    return pd.DataFrame(found)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """One row per work and what doubles: cost at both ends, fitted exponents, and the one that theory allows."""
    rows = []
    for growth in GROWTHS:
        own = found[(found["work"] == growth.work) & (found["doubles"] == growth.doubles)]
        first, last = own.iloc[0], own.iloc[-1]
        rows.append(
            {
                "work": growth.work.replace("_", " "),
                "doubles": f"{growth.doubles}, {first['size']:,} to {last['size']:,}",
                "processor seconds": f"{first['seconds']:.3g} to {last['seconds']:.3g}",
                "MB": f"{first['bytes'] / 1e6:.0f} to {last['bytes'] / 1e6:.0f}",
                "exponent of time": exponent(own["size"], own["seconds"]),
                "of memory": exponent(own["size"], own["bytes"]),
                "allowed": growth.allowed,
                "because": growth.why,
            }
        )
    return pd.DataFrame(rows)


def rows() -> list[dict]:
    """The benchmark table's rows on growth."""
    return [
        {
            "work": f"{row['work']}: {row['doubles']} ({row['MB']} MB, exponent {row['of memory']:.2f})",
            "seconds": row["processor seconds"],
            "ratio": f"n^{row['exponent of time']:.2f}",
            "at_least": f"n^{row['allowed']:g}",
        }
        for row in summary(table()).to_dict("records")
    ]


def picture(found: pd.DataFrame) -> None:
    """Time over size, both logarithmic; the dashed line has the exponent that theory allows."""
    import matplotlib.pyplot as plt

    from induction_memory.files import write_figure

    figure, axes = plt.subplots(2, 5, figsize=(12, 5), layout="constrained")
    for ax, growth in zip(axes.flat, GROWTHS, strict=False):
        own = found[(found["work"] == growth.work) & (found["doubles"] == growth.doubles)]
        sizes, seconds = np.array(own["size"], dtype=float), np.array(own["seconds"])
        ax.loglog(sizes, seconds, "o-")
        ax.loglog(sizes, seconds[-1] * (sizes / sizes[-1]) ** growth.allowed, "--", color="0.6")
        ax.set(title=growth.work.replace("_", " "), xlabel=growth.doubles)
        ax.minorticks_off()
        ax.set_xticks(growth.sizes, growth.sizes)
    for ax in list(axes.flat)[len(GROWTHS) :]:
        ax.set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel("processor seconds")
    write_figure(figure, PICTURE, dpi=110)


def write() -> None:
    """Measure, and put the table and the picture on the page."""
    found = table()
    picture(found)
    whole = summary(found)
    for name in ("exponent of time", "of memory"):
        whole[name] = whole[name].map("{:.2f}".format)
    lines = ["| " + " | ".join(whole.columns) + " |", "| --- " * len(whole.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in whole.to_numpy().tolist()]
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    shown = f"![Time over size](growth.png)\n\n{chr(10).join(lines)}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{shown}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        print(table().to_string())
