"""`theory`: check the paper's lemmas and its three-step theorem."""

import sys
from typing import Annotated

import tyro

from induction_memory.cli.arguments import OptionalPath
from induction_memory.errors import printable
from induction_memory.tables import show

COLUMNS = ("check", "statement", "predicted", "measured", "tolerance", "result")
MANY = {"holds": "hold", "slip": "slips", "does not hold": "do not hold", "no slip": "no slips"}


def theory(checks: Annotated[tuple[str, ...], tyro.conf.Positional] = (), /, out: OptionalPath = None) -> None:
    """Check the paper's lemmas and its three-step theorem; exit 1 for a surprise.

    What does not hold comes first. A known error of the paper reads "slip".

    Args:
        checks: names of the checks; all by default.
        out: folder for the figures.
    """
    from induction_memory import theory as library

    table = library.run([*checks] or None, out=out)
    results = {(True, True): "holds", (False, True): "slip", (False, False): "does not hold", (True, False): "no slip"}
    pairs = zip(table["verdict"].astype(bool), table["expected"].astype(bool), strict=True)
    found = [results[pair] for pair in pairs]
    order = ["does not hold", "no slip", "slip", "holds"]
    rows = table.assign(result=found, rank=[order.index(result) for result in found])
    show(rows.sort_values("rank", kind="stable"), "table", COLUMNS)
    number = {result: found.count(result) for result in reversed(order) if result in found}
    counts = ", ".join(f"{n} {result if n == 1 else MANY[result]}" for result, n in number.items())
    print(f"\n{len(found)} statements: {counts}")
    if out is not None:
        print(printable(str(out)))
    if not bool(table["expected"].all()):
        sys.exit(1)
