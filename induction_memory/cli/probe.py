"""`probe`: measure a trajectory."""

import sys
from typing import Annotated

import tyro

from induction_memory.cli.arguments import HERE, Names, Text, Where, listed, load_any, optional, sequences_of, step_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError, require

TEXT_SEQUENCES = 64


def probe(
    run: Annotated[str | None, tyro.conf.Positional, optional("RUN", str)] = None,
    /,
    probes: Names = (),
    step: str = "all",
    list: bool = False,
    text: Text = None,
    tokens: Names = (),
    where: Where = HERE,
    output: TableOutput = TERMINAL,
) -> None:
    """Measure a trajectory: memory recall, attention, predictions, weights.

    Args:
        run: a trajectory's folder, the name of a shipped one, or a folder with a series of checkpoints.
        probes: names of probes or families; by default the memory recalls, for a task without memories the distances to
            its predictors, or else loss and accuracy.
        step: all, last, or a list such as 0,100,300.
        list: explain each probe in one line.
        text: for a series, the text to run on, or @FILE with it; by default random tokens repeated once.
        tokens: measure instead recall between these tokens through each head's QK and OV circuits: token ids, or for a
            series texts of one token each.
    """
    chosen_step, names = step_of(step), listed(probes, "--probes")
    from induction_memory import probes as library

    if list:
        for name, about in library.names().items():
            print(f"{name:<24} {about}")
        print("\nwith names of the task's own:")
        for name, about in library.PATTERNS.items():
            print(f"{name:<32} {about}")
        return
    if run is None:
        raise InputError("RUN: expected a trajectory's folder or name, or --list")
    require(not (tokens and names), "--tokens", "it or --probes", "both")
    opened = load_any(run)
    if tokens:
        chosen = tuple(int(one) if one.isdecimal() else one for one in tokens)
        output.write(library.recall(opened, tokens=chosen, step=chosen_step))
        return
    batch = sequences_of(opened, text, TEXT_SEQUENCES)
    table = library.table(opened, names or None, step=chosen_step, batch=batch, engine=where.engine)
    skipped = table.attrs.get("skipped", {})
    if table.empty and skipped:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"--probes: expected some that this run allows, got {name!r}, which {reason}")
    for reason in dict.fromkeys(skipped.values()):
        print(f"{', '.join(name for name in skipped if skipped[name] == reason)}: {reason}", file=sys.stderr)
    output.write(library.wide(table).reset_index())
