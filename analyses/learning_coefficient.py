"""Which settings give the local learning coefficient of a model or a matrix: a sweep over n_beta and step size.

    python analyses/learning_coefficient.py --docs docs
    python analyses/learning_coefficient.py induction-alone --part W_K2 --n-betas 30 100 --step-sizes 1e-3

Prints the calibration sweep (`calibrate`) and draws it. The whole sweep takes three minutes on one core.
"""

from dataclasses import replace
from pathlib import Path

import tyro

import induction_memory as im
from induction_memory.errors import run_script
from induction_memory.paper.figures.calibration import calibration_figure
from induction_memory.probes.langevin import Sampling, calibrate
from induction_memory.terminal import show


def main(
    run: tyro.conf.Positional[str] = "markov-1",
    /,
    part: str = "all",
    step: int | None = None,
    n_betas: tuple[float, ...] = (10, 30, 100),
    step_sizes: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3, 2e-3),
    burn_in: int = 200,
    draws: int = 200,
    chains: int = 3,
    batch_size: int = 16,
    docs: Path | None = None,
) -> None:
    """Sweep, print and draw.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        part: "all", a matrix (W_K2), a head (L2H1) or a matrix of a head (W_K2 of L2H1).
        step: a stored step; the last by default.
        n_betas: inverse temperatures.
        step_sizes: step sizes of the chains.
        burn_in: updates before the first draw.
        draws: draws per chain.
        chains: independent chains.
        batch_size: sequences per minibatch.
        docs: folder for learning-coefficient.png and its numbers.
    """
    opened = im.load(run)
    at = int(opened.steps[-1]) if step is None else step
    how = replace(Sampling(), draws=draws, burn_in=burn_in, chains=chains, batch_size=batch_size)
    table = calibrate(opened, part, step=at, n_betas=n_betas, step_sizes=step_sizes, sampling=how)
    show(table)
    if docs is not None:
        title = f"{part} of {opened.name}, step {at}"
        calibration_figure(table, title).savefig(docs / "learning-coefficient.png", dpi=120)
        table.to_csv(docs / "learning-coefficient.csv", index=False)


if __name__ == "__main__":
    run_script(main, __doc__)
