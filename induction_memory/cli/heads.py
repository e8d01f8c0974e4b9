"""`heads`: which head does what."""

from typing import Annotated, Literal

import tyro

from induction_memory.cli.arguments import load, step_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError

Table = Literal["roles", "votes", "shares", "pairs", "mediation", "stability", "identifiability"]


def heads(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    step: str = "last",
    table: Table = "roles",
    output: TableOutput = TERMINAL,
) -> None:
    """Say which head does what, by three votes, and how stable that is across runs.

    Args:
        runs: folders of trajectories, or names of shipped ones.
        step: a stored step, several, last, or all.
        table: verdicts, the votes behind them, Shapley shares, pairs of heads, paths, or what several runs agree on.
    """
    from induction_memory.heads import identify

    if not runs:
        raise InputError("RUN: expected at least one trajectory's folder or name, got none")
    output.write(getattr(identify([load(run) for run in runs], step=step_of(step)), table))
