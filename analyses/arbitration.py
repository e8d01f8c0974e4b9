"""Does a model follow its context or the global bigrams, over training, with fixed and with random triggers?

    python analyses/arbitration.py --docs docs/arbitration.png
    python analyses/arbitration.py four-heads layernorm-mlp

Prints, per run and step, how often the retrieved token is predicted by its rank in pi_b (`im.probes.arbitration`), at
triggers and at other repeated tokens, and draws both over training.
"""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import tyro
from matplotlib.figure import Figure

import induction_memory as im
from induction_memory.errors import require, run_script
from induction_memory.views.figures.curves import SHARE

LINES = {
    ("in-context accuracy", "3 or more"): ("triggers, rank 3 or more", "#c8503c", "-"),
    ("in-context accuracy", "1 to 2"): ("triggers, ranks 1 and 2", "#c8503c", ":"),
    ("copying", "3 or more"): ("other repeated tokens, rank 3 or more", "#2f6fb3", "-"),
    ("copying", "1 to 2"): ("other repeated tokens, ranks 1 and 2", "#2f6fb3", ":"),
}
"""Question and ranks -> label, colour and style. Rank 0 is left out: both sources predict it."""


def arbitration_figure(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """One panel per run, from tables that `probes.arbitration` returns; bands are 95 % intervals over sequences."""
    require(len(tables) > 0, "tables", "at least one run", "none")
    figure = Figure(figsize=(1 + 4.2 * len(tables), 3.6), layout="constrained")
    panels = figure.subplots(1, len(tables), squeeze=False, sharey=True)[0]
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        for (question, ranks), (label, colour, style) in LINES.items():
            own = table.loc[(table["question"] == question) & (table["rank"] == ranks)]
            step, value, error = (own[name].to_numpy(dtype=float) for name in ("step", "value", "value_se"))
            axes.plot(step, value, color=colour, ls=style, lw=1.4, label=label)
            axes.fill_between(step, value - 1.96 * error, value + 1.96 * error, color=colour, alpha=0.15, lw=0)
        axes.set(title=title, xlabel="step", ylim=SHARE)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    panels[0].set_ylabel("share that predicts the retrieved token")
    panels[-1].legend(frameon=False, fontsize="small")
    return figure


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
    tables = {name: im.probes.arbitration(im.load(name), step="all", sequences=sequences) for name in runs}
    for name, table in tables.items():
        print(name)
        wide = table.pivot_table("value", index="step", columns=["question", "rank"], dropna=False)
        print(wide[list(LINES)].round(3).to_string(na_rep=""))
    if docs is not None:
        arbitration_figure(tables).savefig(docs, dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
