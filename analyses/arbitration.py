"""Does a model follow its context or the global bigrams, over training, with fixed and with random triggers?

    python analyses/arbitration.py --docs docs/arbitration.png
    python analyses/arbitration.py four-heads layernorm-mlp

Prints, per run and step, how often the retrieved token is predicted by its rank in pi_b (`im.probes.arbitration`), at
triggers and at other repeated tokens, and draws both over training.
"""

from pathlib import Path

import tyro

import induction_memory as im
from induction_memory.errors import run_script
from induction_memory.paper.figures.arbitration import LINES, arbitration_figure


def main(
    runs: tyro.conf.Positional[tuple[str, ...]] = ("random-triggers", "fixed-triggers"),
    /,
    sequences: int = 64,
    docs: Path | None = None,
) -> None:
    """Measure, print and draw.

    Args:
        runs: trajectories' folders, or the names of shipped ones.
        sequences: fresh sequences.
        docs: picture to write.
    """
    tables = {name: im.probes.arbitration(im.load(name), steps="all", sequences=sequences) for name in runs}
    for name, table in tables.items():
        print(name)
        wide = table.pivot(index="step", columns=["question", "rank"], values="value")
        print(wide[list(LINES)].round(3).to_string(na_rep=""))
    if docs is not None:
        arbitration_figure(tables).savefig(docs, dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
