"""Theory against training: which share of each real update lies where Theorem 3 says.

    python analyses/studies/theory_against_training.py --runs runs/studies --docs docs/studies      # five minutes
    python analyses/studies/theory_against_training.py --scale full --runs runs/studies-full --out runs/theory  # hours

Writes `theory-shares.csv`, one row per seed, matrix and update, and `theory-births.csv`.
"""

from pathlib import Path

import pandas as pd
import torch
from base_runs import Scale, base_run, seeds_of
from jaxtyping import Float
from matplotlib.figure import Figure
from over_seeds import over_seeds
from scipy.stats import spearmanr
from torch import Tensor

import induction_memory as im
from induction_memory.errors import run_script

RESULTS = Path(__file__).parent / "results"
MATRICES = ("W_O2", "W_K2", "W_K1")


def predictions(run: im.Trajectory) -> dict[str, tuple[Float[Tensor, "i d"], Float[Tensor, "j d"], Tensor, Tensor]]:
    """Inputs, outputs, weights of the pairs in the predicted step, and the pairs whose span counts, per matrix."""
    w_E, w_U, p, keys, values, spurious = (
        run.embedding(name, [0]).reshape(-1, run.model_config.d_model)
        for name in ("w_E", "w_U", "p", "Phi_1 w_E", "W_V2 w_E", "W_V2 Phi_1 w_E")
    )
    N, T = len(w_E), run.task.length
    t = torch.arange(1, T + 1).float()
    tau = 1 - float((1 / t).sum() - 1) / (T - 1)
    one, centred, previous = torch.eye(N), torch.eye(N) - 1 / N, torch.eye(T).roll(-1, 0).T.tril(-1)
    position = (previous - torch.ones(T, T).tril() / t[:, None]) / t[:, None]
    position[0] = 0
    often = torch.from_numpy(run.task.trigger_probabilities.copy()).float()
    return {
        "W_O2": (torch.cat([values, spurious]), w_U, torch.cat([centred, tau * centred], 1), torch.cat([one, one], 1)),
        "W_K2": (keys, w_E, one * often, one),
        "W_K1": (p[:T], p[:T], position, previous),
    }


def shares(run: im.Trajectory, seed: int) -> list[dict[str, object]]:
    rows = []
    for name, (u, v, ideal, pairs) in predictions(run).items():
        W = run.memory(name)
        update = W[1:] - W[:-1]
        direction = im.memory.alignment(im.memory.Association(name, update, u, v, ideal))
        span = im.memory.explained(im.memory.Association(name, update, u, v, pairs))
        norms = update.flatten(1).norm(dim=1)
        for n, step in enumerate(run.steps[:-1].tolist()):
            found = {"direction": float(direction[n].square() * direction[n].sign()), "span": float(span[n])}
            rows.append({"seed": seed, "matrix": name, "step": step} | found | {"norm": float(norms[n])})
    return rows


def correlations(run: im.Trajectory, seed: int) -> list[dict[str, object]]:
    """Rank correlation of the birth step with the predicted strength: frequency, 1/position, first score."""
    first = run.memory("W_O2", [1])[0] - run.memory("W_O2", [0])[0]
    u, v, *_ = predictions(run)["W_O2"]
    strengths = {"W_O2": ((v @ first) * u[: len(v)]).sum(1), "W_K2": None, "W_K1": None}
    rows = []
    for name, score in strengths.items():
        births = im.probes.births(run, name)
        strength = score if score is not None else births["frequency"] if name == "W_K2" else 1 / births["position"]
        late = births["birth"].fillna(float("inf")).rank()
        rho, _ = spearmanr(late, pd.Series(strength).rank())
        rows.append({"seed": seed, "matrix": name, "rho": rho, "born": births["birth"].count()})
    return rows


def figure(table: pd.DataFrame) -> Figure:
    drawn = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, name in zip(drawn.subplots(1, 3, sharey=True), MATRICES, strict=True):
        for kind in ("direction", "span"):
            own = over_seeds(table.query("matrix == @name"), ["step"], kind)
            axes.plot(
                own["step"] + 1, own["mean"], label={"direction": "in the predicted direction"}.get(kind, "in the span")
            )
            axes.fill_between(own["step"] + 1, own["low"], own["high"], alpha=0.2)
        axes.set(xscale="log", title=name, xlabel="update", ylim=(-0.02, None))
    drawn.axes[0].set_ylabel("share of the squared update")
    drawn.axes[0].legend(frameon=False, fontsize="small")
    return drawn


def main(runs: Path, scale: Scale = "reduced", out: Path = RESULTS, docs: Path | None = None) -> None:
    """Train what `runs` does not hold yet, write the tables to `out`, and with `docs` draw the figure there."""
    trained = {seed: base_run(scale, seed, runs) for seed in seeds_of(scale)}
    table = pd.DataFrame([row for seed, run in trained.items() for row in shares(run, seed)])
    births = pd.DataFrame([row for seed, run in trained.items() for row in correlations(run, seed)])
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "theory-shares.csv", index=False, float_format="%.5g")
    births.to_csv(out / "theory-births.csv", index=False, float_format="%.5g")
    if docs is not None:
        figure(table).savefig(docs / "theory-against-training.png", dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
