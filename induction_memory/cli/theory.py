"""`theory`: check the paper's lemmas and its three-step theorem."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from induction_memory.cli.arguments import optional
from induction_memory.errors import printable
from induction_memory.terminal import Columns, Format, interruptions, show

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("result", "check", "statement", "predicted", "measured", "tolerance")
GROUPS = ("result", "check")
RESULTS = {(False, False): "does not hold", (True, False): "no slip", (False, True): "slip", (True, True): "holds"}
"""The verdict of a row by its columns `verdict` and `expected`, worst first."""
MANY = {"holds": "hold", "slip": "slips", "does not hold": "do not hold", "no slip": "no slips"}


def theory(
    checks: Annotated[tuple[str, ...], tyro.conf.Positional, optional("CHECK ...|all")] = (),
    /,
    out: Annotated[Path | None, optional("FOLDER", Path)] = None,
    format: Format = "table",
    columns: Columns = "chosen",
) -> None:
    """Check the paper's lemmas and its three-step theorem; exit 1 for a surprise.

    Statements that do not hold come first. "slip": a known error of the paper.

    Args:
        checks: names of the checks; all by default.
        out: folder for the figures.
        format: format of the table.
        columns: columns in the terminal; csv and json always have all.
    """
    from induction_memory.paper import theory as library

    table = library.run(None if checks in ((), ("all",)) else checks, out=out)
    if format == "table":
        _show(table, columns, f" {library.SLIP}")
        if out is not None:
            print(printable(str(out)))
    else:
        show(table, format)
    if not interruptions() and not bool(table["expected"].all()):
        sys.exit(1)


def _show(table: "pd.DataFrame", columns: Columns, slip: str) -> None:
    """The table, with rows that do not hold first, and a line of counts."""
    pairs = zip(table["verdict"].astype(bool), table["expected"].astype(bool), strict=True)
    found, order = [RESULTS[pair] for pair in pairs], [*RESULTS.values()]
    rows = table.assign(
        result=found,
        rank=[order.index(result) for result in found],
        statement=[statement.removesuffix(slip) for statement in table["statement"]],
    )
    rows = rows.sort_values("rank", kind="stable").drop(columns="rank")
    if columns == "all":
        show(rows)
    else:
        show(rows, "table", COLUMNS, GROUPS)
    number = {result: found.count(result) for result in reversed(order) if result in found}
    counts = ", ".join(f"{n} {result if n == 1 else MANY[result]}" for result, n in number.items())
    print(f"\n{len(found)} statements: {counts}")
