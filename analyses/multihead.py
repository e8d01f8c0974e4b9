"""Four heads a layer: which head does what, in how many of the runs? Makes docs/heads.md and its figures.

    python analyses/multihead.py                      five seeds of the preset heads, two at a time
    python analyses/multihead.py --no-train           tables and figures of the runs that are there
    python analyses/multihead.py --siblings 2         and seed 0 twice with other data, twice with other weights
    python analyses/multihead.py --name figure-11     the same in Figure 11's batches of 512: four times as long

What is trained is kept: a run that was interrupted goes on, a finished one is read. Each trains with one thread.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded: the processes share the cores

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro

from induction_memory.errors import InputError, require, run_script
from induction_memory.experiment.presets import preset, with_seed
from induction_memory.experiment.run_config import RunConfig
from induction_memory.sweep.estimate import cost
from induction_memory.sweep.job import Job, path_of
from induction_memory.sweep.loop import engine, work_off

PAPER = (
    "In the first layer (top), the previous token mechanism is mostly achieved by one of the four heads, while the "
    "induction behavior at the second layer (bottom) is distributed across the different heads."
)
TABLES = "heads"
MOSTLY_ONE, DISTRIBUTED = 1.5, 2.0  # effective heads: up to the first it is mostly one, from the second on several
Settings = Annotated[
    tuple[tuple[str, ...], ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PART.FIELD=VALUE ...")
]


def plan(config: RunConfig, seeds: int, siblings: int) -> dict[str, RunConfig]:
    """End of a name -> run: independent seeds, then seed 0 again with other data, and with other initial weights."""
    runs = {f"seed-{seed}": with_seed(config, seed) for seed in range(seeds)}
    first = runs["seed-0"].train
    for i in range(1, siblings + 1):
        runs[f"init-0-data-{i}"] = replace(config, train=replace(first, data_seed=1000 + i))
        runs[f"init-{i}-data-0"] = replace(config, train=replace(first, init_seed=1000 + i))
    return {name: run.with_settings(["train.threads=1"]) for name, run in runs.items()}


def work(name: str, config: dict[str, Any], out: str, train: bool, readings: int, sequences: int) -> None:
    """Train one run, or go on with it, and read its heads into tables; nothing where the run is not there."""
    from induction_memory.heads import identify
    from induction_memory.training.run import start
    from induction_memory.trajectory import load

    asked_for = RunConfig.from_dict(config)
    folder, tables = Path(out) / name, Path(out) / TABLES / name
    if train:
        start(asked_for, folder, resume="or start", quiet=True, command="python analyses/multihead.py")
    if not folder.exists() or not load(folder).finished:
        return
    run = load(folder)
    for path, (asked, there) in asked_for.differences(run.config).items():
        raise InputError(f"{folder}: expected {path} = {asked!r}, got {there!r}")
    key = f"{run.fingerprint} {readings} {sequences}"
    if not (tables / "key").exists() or (tables / "key").read_text() != key:
        steps = run.steps[np.unique(np.linspace(0, len(run.steps) - 1, readings).round().astype(int))]
        identify(run, step=[int(step) for step in steps], sequences=sequences).save(tables)
        (tables / "key").write_text(key)


def page(found, config: RunConfig, accuracies: Sequence[float], command: str, pictures: str) -> str:
    """docs/heads.md: what came out, beside the paper's sentence."""
    independent = found.stability.loc[(found.stability["relation"] == "independent").to_numpy()]
    value = {(r["role"], r["measure"]): r for r in independent.to_dict("records")}
    previous, induction = (value[role, "effective"] for role in ("previous-token", "induction"))
    first = _agrees(previous["value"], previous["value"] <= MOSTLY_ONE)
    second = _agrees(induction["value"], induction["value"] >= DISTRIBUTED)
    odd = found.last("roles")
    odd = odd.loc[((odd["disagreement"] != "") | (odd["redundant_with"] != "")).to_numpy()]
    births = found.births.merge(found.decisions, on=["run", "role"])
    model, task, train = config.model, config.task, config.train
    return f"""# Which head does what

Written by `{command}`: {len(found.runs)} runs of the model with {model.n_heads} heads in each of {model.n_layers}
layers (d = {model.d_model}, T = {task.length}, K = {task.k} {task.triggers} triggers, {train.steps} steps in batches of
{train.batch_size}, step size {train.learning_rate:g} after a warm-up of {train.warmup}). In-context accuracy ends at
{min(accuracies):.2f} to {max(accuracies):.2f}. Names, formulas and thresholds are in the docstrings of
`induction_memory/heads/`. The paper's batches are of 512. How a role is named (first 64 positions, votes that lean) was
settled after a first look at these runs, in which position heads came out as "other"; effects and shares are untouched.

The paper (Figure 11) says of one such run:

> {PAPER}

| | effective number of heads | largest share of one head | it |
| --- | --- | --- | --- |
| previous token, by keys | {_interval(previous)} | {_interval(value["previous-token", "leader"])} | {first} |
| induction, on the output | {_interval(induction)} | {_interval(value["induction", "leader"])} | {second} |

Means over {previous["runs"]} independent runs with 95 % bootstrap intervals over runs. The effective number is the
participation ratio of exact Shapley values; a mechanism counts as mostly one head's up to {MOSTLY_ONE}, as distributed
from {DISTRIBUTED} on. The run of Figure 11 itself (`four-heads`, batches of 512) has {_figure_11()}.

![shares]({pictures}/shares.png)

How many heads of a run each vote names, and the verdict (means over all runs):

{_markdown(_by_vote(found.last("roles")))}

## Roles

The colour is the verdict of three votes (weights, attention, causes), its depth the confidence, the number the share of
the layer's effect on the right output's logit.

![roles]({pictures}/roles.png)

Where the votes disagree, and heads that can stand in for each other:

{_markdown(odd[["run", "head", "role", "confidence", "disagreement", "redundant_with"]])}

## Stability

![stability]({pictures}/stability.png)

{_markdown(found.stability.dropna(subset="value"))}

`heads`: how many have the role; `effective` and `leader`: effective number and largest share on its route; `born`: step
from which the leader keeps it; `agreement`: of the matched heads of two runs; `same layer`, `same head`: whether the
leaders of two runs sit in one layer, or have one name, which by chance is {1 / model.n_heads:.2f}.

## Can one know?

How well one run predicts another's roles: 0 is chance, 1 is certainty. By `index` from the head of the same name, by
`layer` from any head of its layer, by `looks` from the head that resembles it in weights and attention (predicted is
what it causes), by `match` from the head that resembles it in all three votes.

![identifiability]({pictures}/identifiability.png)

{_markdown(found.identifiability)}

## Through what

Mediation in the first run: the effect of cutting a head, directly and through each later head's queries, keys, values.

![mediation]({pictures}/mediation.png)

## Over training

The first run; then, of every run, the step from which a head keeps its role (born), from which its route does half of
its last work (emerged), and from which the shares stay as they end (decided).

![training]({pictures}/training.png)

{_markdown(births[["run", "head", "role", "born", "emerged", "decided"]])}

Changes of role in all runs: {len(found.changes)}, of which {_between_roles(found.changes)} from one named role to
another.
"""


def draw(found, folder: Path) -> None:
    """The figures of the page."""
    from induction_memory.figures import heads as figures

    first = found.runs["run"].tolist()[0]
    layers = int(found.runs["n_layers"].tolist()[0])
    shares, paths = (table.loc[(table["run"] == first).to_numpy()] for table in (found.shares, found.mediation))
    routes = [("k", 1, "previous token: through keys"), ("out", layers, "induction: on the output")]
    independent = found.stability.loc[(found.stability["relation"] == "independent").to_numpy()]
    drawn = {
        "roles": figures.role_map(found.last("roles")),
        "shares": figures.shared_work(found.carriers),
        "stability": figures.stability(independent),
        "identifiability": figures.identifiability(found.identifiability),
        "mediation": figures.mediation(paths),
        "training": figures.over_training(shares, routes),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=130)


def _figure_11() -> str:
    from induction_memory.reproduction.record_files import FOLDER, read
    from induction_memory.trajectory.search import SHIPPED

    last = read(SHIPPED / FOLDER / "figure-11-seed-0").last
    previous, induction = (last[f"effective_heads_{role}"] for role in ("previous-token", "induction"))
    return f"{previous:.2f} and {induction:.2f}"


def _interval(row: dict) -> str:
    return f"{row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f})"


def _agrees(value: float, fits: bool) -> str:
    return "cannot be said: no effect" if np.isnan(value) else "agrees" if fits else "does not agree"


def _by_vote(roles: pd.DataFrame) -> pd.DataFrame:
    runs = len(set(roles["run"]))
    votes = {"weights": "weights", "attention": "attention", "causes": "causes", "verdict": "role"}
    named = ("previous-token", "current-token", "induction")
    rows = [(role, *(roles[column].tolist().count(role) / runs for column in votes.values())) for role in named]
    return pd.DataFrame(rows, columns=["role", *votes])


def _between_roles(changes: pd.DataFrame) -> int:
    both = zip(changes["before"], changes["after"], strict=True)
    return sum(not {before, after} & {"none", "other"} for before, after in both)


def _markdown(table: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "| " + " | ".join(["---"] * len(table.columns)) + " |"]
    for row in table.itertuples(index=False):
        cells = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    out: Path = Path("runs/paper"),
    docs: Path = Path("docs"),
    seeds: int = 5,
    siblings: int = 0,
    workers: int = 2,
    name: str = "heads",
    set: Settings = (),
    readings: int = 24,
    sequences: int = 32,
    train: bool = True,
) -> None:
    """Train the runs that are missing, read their heads, and write docs/heads.md.

    Args:
        out: folder of the runs and their tables.
        docs: folder of the page.
        seeds: number of independent runs.
        siblings: retrainings of seed 0, as many with other data as with other initial weights.
        workers: runs at a time, each with one thread.
        name: the experiment.
        set: change its settings, as in model.d_model=64 task.k=3.
        readings: steps of each run at which the heads are read.
        sequences: sequences they are read on.
        train: train what is missing.
    """
    from induction_memory.heads import Identification
    from induction_memory.trajectory import load

    require(seeds >= 2, "seeds", "2 or more to compare", seeds)
    require(workers >= 1, "workers", "1 or more", workers)
    config = preset(name).run.with_settings([setting for group in set for setting in group])
    runs = plan(config, seeds, siblings)
    named = {f"{name}-{end}": run for end, run in runs.items()}
    same = {"out": str(out), "train": train, "readings": readings, "sequences": sequences}
    jobs = [
        Job(name, path_of(work), {"name": name, "config": run.to_dict()} | same, out / name, run.train.steps, cost(run))
        for name, run in named.items()
    ]
    for name, outcome in work_off(jobs, engine(min(workers, len(jobs)))).items():
        require(outcome.state == "done", name, "to be trained and read", outcome.error)
    tables = [out / TABLES / name for name in named if (out / TABLES / name / "key").exists()]
    require(len(tables) >= 2, "out", f"two or more finished runs in {out}", len(tables))
    found = Identification.join([Identification.read(folder) for folder in tables])
    accuracies = [load(out / folder.name).metrics["accuracy_in_context"].to_numpy() for folder in tables]
    ends = [float(np.nanmean(values[-20:])) for values in accuracies]
    draw(found, docs / "heads")
    text = page(found, config, ends, shlex.join(["python", "analyses/multihead.py", *sys.argv[1:]]), "heads")
    (docs / "heads.md").write_text(text, encoding="utf-8")
    print(f"{docs / 'heads.md'}: {len(tables)} runs")


if __name__ == "__main__":
    run_script(main, __doc__)
