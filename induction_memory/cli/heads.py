"""`heads`: which head does what."""

from typing import Annotated, Literal

import tyro

from induction_memory.cli.arguments import HERE, OptionalStr, Text, Where, load_any, sequences_of, step_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError, require

# fmt: off
Table = Literal[
    "roles", "votes", "shares", "carriers", "pairs", "hydra", "mediation",
    "births", "changes", "decisions", "stability", "identifiability",
    "origins",
]
# fmt: on
OVER_TRAINING = ("births", "changes", "decisions")
COLUMNS = {
    "roles": ("run", "step", "head", "role", "agreement", "share", "redundant_with", "disagreement"),
    "votes": ("run", "step", "head", "vote", "role", "score"),
    "shares": ("run", "step", "game", "layer", "head", "share", "effect", "shapley"),
    "pairs": ("run", "step", "a", "b", "relation", "strength", "interaction"),
    "hydra": ("run", "step", "cut", "other", "before", "after", "takeover"),
}
EMPTY = {
    "births": "no head has a role at the last step",
    "changes": "no head changes its role",
    "decisions": "no head has an effect by the route of a role",
    "carriers": "no head has a clear effect by the route of a role: more sequences may show one",
    "stability": "stability compares two or more runs of one configuration: independent ones, or ones that share "
    "initial weights or data",
    "identifiability": "identifiability compares two or more runs of one configuration: independent ones, or ones that "
    "share initial weights or data",
    "origins": "origins compares two or more runs of one configuration: ones that share initial weights or data with "
    "independent ones",
}


def heads(
    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...", help_behavior_hint="(required)")
    ],
    /,
    step: OptionalStr = None,
    table: Table = "roles",
    sequences: int = 32,
    text: Text = None,
    where: Where = HERE,
    output: TableOutput = TERMINAL,
) -> None:
    """Say which head does what, by three votes, and how stable that is across runs.

    Args:
        runs: folders of trajectories, names of shipped ones, or folders with series of checkpoints.
        step: a stored step, several, last, or all. By default the last, and all for births, changes and decisions.
        table: of one run: roles (verdicts), the votes behind them, Shapley shares, shares by role (carriers), pairs of
            heads, what a head takes over when another is ablated (hydra), paths (mediation). Over training: births and
            changes of roles, and when the sharing is decided (decisions). Across runs: how stable roles are
            (stability), how well one run predicts another (identifiability), and whether initial weights or data decide
            (origins).
        sequences: number of sequences to measure on; more show smaller effects.
        text: for a series, the text to run on, or @FILE with it; by default random tokens repeated once.
    """
    if not runs:
        raise InputError("RUN: expected at least one trajectory's folder or name, got none")
    chosen = step_of(step if step is not None else "all" if table in OVER_TRAINING else "last")
    require(sequences >= 2, "--sequences", "at least 2", sequences)
    opened = [load_any(run) for run in runs]
    from induction_memory.heads import identify

    batch = sequences_of(opened[0], text, sequences)
    found = getattr(identify(opened, step=chosen, batch=batch, sequences=sequences, engine=where.engine), table)
    output.write(found, COLUMNS.get(table), empty=EMPTY.get(table, "no rows"))
