"""`reproduce`: the paper's figures and claims."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from induction_memory.cli.arguments import optional
from induction_memory.terminal import Columns, Format, show

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("verdict", "claim", "source", "measure", "value", "threshold")
GROUPS = ("verdict", "source", "claim")
NOTE = "± half of a 95 % interval, † a measure added after a first look at the runs"


def reproduce(
    figures: Annotated[tuple[str, ...], tyro.conf.Positional, optional("FIGURE ...|all")] = (),
    /,
    scale: Literal["quick", "paper"] = "quick",
    check: bool = False,
    runs: Path = Path("runs"),
    out: Path = Path("reproduction"),
    workers: int = 2,
    train: bool = True,
    quiet: bool = False,
    format: Format = "table",
    columns: Columns = "chosen",
) -> None:
    """Train what is missing, draw the paper's figures, judge its claims, write a page.

    Args:
        figures: numbers of figures, 2 to 11; all by default.
        scale: quick takes minutes at a reduced size; paper takes hours at the paper's size. Both resume where they
            stopped.
        check: judge the claims about these figures from the shipped records and trajectories, without training.
        runs: folder of the runs, in one folder per scale.
        out: folder of the page and its pictures.
        workers: runs at a time, each with one thread.
        train: train missing runs; otherwise use only the runs that are there.
        quiet: no progress.
        format: format of the table of claims.
        columns: columns in the terminal; csv and json always have all.
    """
    from induction_memory.paper import plan

    chosen = plan.figures(figures)
    if check:
        _check(chosen, format, columns)
        return
    from induction_memory.paper import reproducing as library

    made = library.reproduce(
        chosen, scale, runs=runs, out=out, workers=workers, train=train, progress=False if quiet else None
    )
    _show(made.verdicts, format, columns)
    if format == "table":
        for figure, reason in made.reasons.items():
            print(f"figure {figure} was not drawn: {reason}")
        print(f"{len(made.pictures)} figures and the claims in {made.page}")


def _check(chosen: Sequence[int], format: Format, columns: Columns) -> None:
    """Judge the claims about some figures from shipped files; exit 1 if any of them is missing or was changed."""
    from induction_memory.paper.auditing import audit

    found = audit(figures=chosen)
    _show(found.verdicts, format, columns)
    if format == "table":
        print(found.summary)
    for problem in found.problems:
        print(problem, file=sys.stderr)
    if found.problems:
        sys.exit(1)


def _show(verdicts: "pd.DataFrame", format: Format, columns: Columns) -> None:
    """The table of claims; in the terminal, the verdict, the claim and the source are headings above the measures."""
    if format != "table":
        show(verdicts, format)
    elif columns == "all":
        show(_worst_first(verdicts))
    else:
        show(_worst_first(verdicts), format, COLUMNS, [name for name in GROUPS if name in verdicts.columns])
    if format == "table":
        print(f"\n{NOTE}")


def _worst_first(verdicts: "pd.DataFrame") -> "pd.DataFrame":
    """Rows that have no run or do not hold come first, then undecided ones; a value and its error share a cell."""
    from induction_memory.paper.claims import CLAIMS
    from induction_memory.paper.verdicts import VERDICTS

    rows = verdicts.to_dict("records")
    ranked = verdicts.rename(columns={"half_interval": "value_se"}).assign(
        claim=[f"“{CLAIMS[name].says}”" if name in CLAIMS else name for name in verdicts["claim"]],
        rank=[VERDICTS.index(verdict) for verdict in verdicts["verdict"]],
        measure=[f"{row['measure']} (ours)" if row["whose"] == "ours" else row["measure"] for row in rows],
    )
    return ranked.sort_values("rank", kind="stable").drop(columns="rank")
