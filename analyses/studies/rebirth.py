"""Rebirth: erase one association of a run, train on with the same batches, and see when it is recalled again.

    python analyses/studies/rebirth.py --runs runs/studies --docs docs/studies                              # 15 minutes
    python analyses/studies/rebirth.py --scale full --runs runs/studies-full --out runs/rebirth             # a day

Writes `rebirth.csv`, one row per erased association, and `rebirth-rounds.csv`, one row per repeated erasure.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from base_runs import Scale, base_run, seeds_of
from matplotlib.figure import Figure

import induction_memory as im
from induction_memory.errors import run_script

RESULTS = Path(__file__).parent / "results"
STEPS, ROUND, ROUNDS = 30, 15, 5


def erased(run: im.Trajectory, memory: str, token: str, at: int, steps: int, out: Path) -> im.Trajectory:
    edit, settings = {"memory": memory, "erase": token}, ["train.checkpoints=every 1"]
    where = out / f"{run.name}-{memory}-{ord(token)}-{at}"
    return im.branch(run, at, where, edit=edit, steps=at + steps, settings=settings, resume="or start", progress=False)


def delay(branch: im.Trajectory, memory: str, token: str) -> float:
    """Steps until the association is recalled to the end of the branch; nan if it is not."""
    born = im.probes.births(branch, memory).set_index("association")["birth"].to_dict()
    return float(born[token]) - float(branch.steps[0])


def chosen(births: dict[str, pd.DataFrame], at: int) -> list[str]:
    """Of the tokens that both memories recall from step `at` on: the most frequent, the median, the least frequent."""
    born = [set(table.index[table["birth"].to_numpy(dtype=float) <= at]) for table in births.values()]
    table = births["W_K2"].sort_values("frequency", ascending=False)
    both = [str(token) for token in table.index if all(token in own for own in born)]
    return [both[n] for n in (0, len(both) // 2, -1)]


def cost(run: im.Trajectory, memory: str, token: str, at: int) -> float:
    """In-context accuracy lost at once at positions that do not rely on the association."""
    table = im.surgery(run, memory=memory, erase=token, step=at, progress=False)
    return float(table.query("group == 'bystanders'")["damage"].to_numpy()[0])


def measure(run: im.Trajectory, seed: int, times: tuple[int, ...], out: Path) -> list[dict[str, object]]:
    births = {memory: im.probes.births(run, memory).set_index("association") for memory in ("W_K2", "W_O2")}
    rows = []
    for memory, born in births.items():
        for at in times:
            for token in chosen(births, times[0]):
                branch = erased(run, memory, token, at, STEPS, out)
                score = [im.probes.score_matrix(s, memory, step=at + STEPS).loc[token, token] for s in (branch, run)]
                row = {"seed": seed, "memory": memory, "at": at, "token": token, "frequency": born["frequency"][token]}
                row |= {"birth": born["birth"][token], "delay": delay(branch, memory, token)}
                rows.append(row | {"score": score[0] / score[1], "cost": cost(run, memory, token, at)})
    return rows


def rounds(run: im.Trajectory, seed: int, at: int, out: Path) -> list[dict[str, object]]:
    births = {memory: im.probes.births(run, memory).set_index("association") for memory in ("W_K2", "W_O2")}
    token, now, rows = chosen(births, at)[0], run, []
    for n in range(1, ROUNDS + 1):
        now = erased(now, "W_K2", token, at + ROUND * (n - 1), ROUND, out)
        rows.append({"seed": seed, "token": token, "round": n, "delay": delay(now, "W_K2", token)})
    return rows


def figure(table: pd.DataFrame, repeated: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(9, 3.3), layout="constrained")
    left, right = drawn.subplots(1, 2, sharey=True)
    for memory, own in table.groupby("memory"):
        left.plot(own["frequency"], own["delay"].fillna(STEPS), "o", alpha=0.7, label=memory)
    left.set(xscale="log", xlabel="frequency of the token", ylabel="steps until recalled again", ylim=(0, STEPS + 1))
    left.legend(frameon=False, title="erased in")
    for seed, own in repeated.groupby("seed"):
        right.plot(own["round"], own["delay"].fillna(np.nan), "o-", label=f"seed {seed}")
    right.set(xlabel="erased for the n-th time (W_K2)", xticks=range(1, ROUNDS + 1))
    right.legend(frameon=False)
    return drawn


def main(runs: Path, scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Train what `runs` does not hold yet, write the tables to `out`, and with `docs` draw rebirth.png there."""
    rows, repeated, times = [], [], (100, 200) if scale == "reduced" else (200, 400)
    for seed in seeds_of(scale):
        run = base_run(scale, seed, runs)
        rows += measure(run, seed, times, runs / "rebirth")
        repeated += rounds(run, seed, times[0], runs / "rebirth-rounds")
    table, again = pd.DataFrame(rows), pd.DataFrame(repeated)
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "rebirth.csv", index=False, float_format="%.5g")
    again.to_csv(out / "rebirth-rounds.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(table, again).savefig(docs / "rebirth.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
