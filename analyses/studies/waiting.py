"""What waits for what: give a run one matrix from the start, hold it, and see when the others are born.

    python analyses/studies/waiting.py --runs runs/studies --docs docs/studies                        # half an hour
    python analyses/studies/waiting.py --scale full --runs runs/studies-full --out runs/waiting       # days

Writes `waiting.csv`, one row per seed, given matrix, its kind, and born matrix.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from base_runs import Scale, base_run, seeds_of
from jaxtyping import Float
from matplotlib.figure import Figure
from over_seeds import over_seeds
from torch import Tensor

import induction_memory as im
from induction_memory.errors import run_script

RESULTS = Path(__file__).parent / "results"
MATRICES = ("W_O2", "W_K2", "W_K1")
OUTPUTS = {"W_O2": "w_U", "W_K2": "w_E", "W_K1": "p"}
KINDS = ("final", "hand-built", "half", "wrong")


def permuted(run: im.Trajectory, name: str, step: int) -> Float[Tensor, "d d"]:
    """The matrix of a step with every output v_j replaced by the next one; what is orthogonal to all v_j stays."""
    v = run.embedding(OUTPUTS[name], [0]).reshape(-1, run.model_config.d_model)
    move = torch.eye(v.shape[-1]) + (v.roll(-1, 0) - v).mT @ torch.linalg.pinv(v.mT)
    return move @ run.memory(name, [step])[0]


def given(run: im.Trajectory, name: str, kind: str) -> str | Float[Tensor, "d d"]:
    """What is grafted: a matrix in the paper's orientation, or the word that `im.branch` knows."""
    recall = im.probes.recall(run)[name].to_numpy()
    last, half = int(run.steps[-1]), int(run.steps[np.argmax(recall >= min(0.5, recall.max()))])
    if kind == "hand-built":
        return "constructed"
    return permuted(run, name, last) if kind == "wrong" else run.memory(name, [half if kind == "half" else last])[0]


def born(table: pd.DataFrame, name: str, control: pd.DataFrame) -> dict[str, float]:
    """The first stored step from which the recall is at least half the control's last one to the end, and the last."""
    recall, level = table[name].to_numpy(), control[name].to_numpy()[-1] / 2
    return {"born": float(im.memory.first_lasting(recall >= level, table.index.to_numpy())), "recall": recall[-1]}


def measure(run: im.Trajectory, seed: int, until: int, out: Path) -> list[dict[str, Any]]:
    control = im.probes.recall(run, step=[s for s in run.steps.tolist() if s <= until])
    untouched = {"seed": seed, "given": "nothing", "kind": ""}
    rows = [untouched | {"matrix": m} | born(control, m, control) for m in MATRICES]
    for name in MATRICES:
        for kind in KINDS:
            where = out / f"{run.name}-{name}-{kind}"
            graft, rules = given(run, name, kind), {"freeze": [name], "steps": until, "resume": "or start"}
            branch = im.branch(run, 0, where, grafts={name: graft}, progress=False, **rules)
            recall = im.probes.recall(branch)
            for m in (m for m in MATRICES if m != name):
                which = {"seed": seed, "given": name, "kind": kind, "matrix": m}
                rows.append(which | born(recall, m, control))
    return rows


def moves(table: pd.DataFrame, until: int) -> pd.DataFrame:
    """Birth minus that of the seed's untouched run, over seeds; a birth that did not happen counts as the last step."""
    counted = table.assign(born=table["born"].fillna(until), missing=table["born"].isna())
    control = {(row["seed"], row["matrix"]): row["born"] for row in counted.to_dict("records") if not row["kind"]}
    rest = counted.query("given != 'nothing'")
    value = [row["born"] - control[row["seed"], row["matrix"]] for row in rest.to_dict("records")]
    summary = over_seeds(rest.assign(value=value), ["given", "kind", "matrix"])
    means = counted.groupby(["given", "kind", "matrix"], sort=False)[["born", "missing", "recall"]]
    joined = summary.merge(means.agg({"born": "mean", "missing": "sum", "recall": "mean"}).reset_index())
    return joined.assign(moves=(joined["low"] > 0) | (joined["high"] < 0))


def figure(summary: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, name in zip(drawn.subplots(1, 3, sharex=True), MATRICES, strict=True):
        own = summary[summary["given"] == name].iloc[::-1]
        y = np.arange(len(own))
        axes.errorbar(own["mean"], y, xerr=own["high"] - own["mean"], fmt="o", capsize=3)
        axes.axvline(0, color="#999999", lw=0.8)
        axes.set_yticks(y, [f"{matrix}, {kind}" for matrix, kind in zip(own["matrix"], own["kind"], strict=True)])
        axes.set(title=f"given {name}", xlabel="birth, steps later")
    return drawn


def main(runs: Path, scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Train what `runs` does not hold yet, write the tables to `out`, and with `docs` draw waiting.png there."""
    until, rows = 200 if scale == "reduced" else 600, []
    for seed in seeds_of(scale):
        rows += measure(base_run(scale, seed, runs), seed, until, runs / "waiting")
    table = pd.DataFrame(rows)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "waiting.csv", index=False, float_format="%.5g")
    moves(table, until).to_csv(out / "waiting-moves.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(moves(table, until)).savefig(docs / "waiting.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
