"""Take every part of a trained model away, in seven senses of the word: what does in-context learning need?

    python analyses/ablations.py induction-alone
    python analyses/ablations.py runs/figure-3 --step 300 --components heads parts --out ablations.csv

Prints the in-context accuracy without each part, one column a kind of ablation; the whole table, with losses, KL and
standard errors, goes to the file.
"""

from pathlib import Path

import tyro

import induction_memory as im
from induction_memory.errors import require, run_script


def main(
    run: tyro.conf.Positional[str],
    /,
    step: int | None = None,
    components: tuple[str, ...] = ("heads", "feed_forward", "embeddings", "matrices"),
    out: Path | None = None,
) -> None:
    """Ablate a run and print the table.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        step: a stored step; the last by default.
        components: names such as L1H1, W_K2 or pos->L2.k, or groups: heads, layers, matrices, parts, edges ...
        out: .csv file for the whole table.
    """
    require(out is None or out.parent.is_dir(), "out", "a file in a folder that is there", repr(str(out)))
    table = im.ablate(im.load(run), components=components, kind="all", step=step)
    print(table.pivot(index="component", columns="kind", values="in_context_accuracy").round(3).to_string(na_rep=""))
    if out is not None:
        table.to_csv(out, index=False)


if __name__ == "__main__":
    run_script(main, __doc__)
