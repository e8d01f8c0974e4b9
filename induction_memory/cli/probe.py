"""`probe`: measure a trajectory."""

import sys
from typing import Annotated

import tyro

from induction_memory.cli.arguments import listed, load, steps_of
from induction_memory.cli.output import TERMINAL, TableOutput
from induction_memory.errors import InputError


def probe(
    run: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None,
    /,
    probes: tuple[str, ...] = (),
    steps: str = "all",
    list: bool = False,
    output: TableOutput = TERMINAL,
) -> None:
    """Measure a trajectory: memory recall, attention, predictions, weights.

    Args:
        run: trajectory's folder, or the name of a shipped one.
        probes: names of the probes; the memory recalls by default.
        steps: all, or a list such as 0,100,300.
        list: explain each probe in one line.
    """
    from induction_memory import probes as library

    if list:
        for name, about in library.names().items():
            print(f"{name:<24} {about}")
        return
    if run is None:
        raise InputError("RUN: expected a trajectory's folder or name, or --list")
    table = library.table(load(run), listed(probes, "--probes") or None, steps=steps_of(steps))
    skipped = table.attrs.get("skipped", {})
    if table.empty and skipped:
        name, reason = next(iter(skipped.items()))
        raise InputError(f"--probes: expected some that this run allows, got {name!r}, which {reason}")
    for reason in dict.fromkeys(skipped.values()):
        print(f"{', '.join(name for name in skipped if skipped[name] == reason)}: {reason}", file=sys.stderr)
    output.write(library.wide(table).reset_index())
