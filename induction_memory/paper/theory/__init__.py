"""The paper's statements, each with a measured verdict: lemmas, the three-step theorem, the appendices.

`run()` measures and returns one table; `names()` lists the checks. `analyses/theory_page.py` writes docs/theory.md from
these measurements.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from induction_memory.files import require_folder, write_figure, write_file
from induction_memory.paper.theory.checks import Entry, Result, find, names
from induction_memory.terminal import Progress, interruptions, keeping, track

__all__ = ["measure", "names", "run", "table"]


def __dir__() -> list[str]:
    return __all__


SLIP = "[known slip]"
"""The end of the text of a statement that is a known error of the paper."""
COLUMNS = ["check", "statement", "predicted", "measured", "tolerance", "verdict", "expected"]


def measure(names: Sequence[str] | None = None, *, progress: "Progress" = None) -> Iterator[tuple[Entry, Result]]:
    """Run the checks one after the other, in the paper's order.

    >>> import induction_memory as im
    >>> entry, result = next(iter(im.paper.theory.measure(["lemma-1"])))
    >>> entry.name
    'lemma-1'
    """
    for entry in track(find(names), "checks", progress=progress):
        yield entry, entry.function()


def table(entry: Entry, result: Result) -> pd.DataFrame:
    """The rows of one check. `expected` is False if a statement fails, or a known error in the paper holds.

    >>> import induction_memory as im
    >>> for entry, result in im.paper.theory.measure(["lemma-1"]):
    ...     print(list(im.paper.theory.table(entry, result)))
    ['check', 'statement', 'predicted', 'measured', 'tolerance', 'verdict', 'expected']
    """
    rows = []
    for c in result.checks:
        statement = f"{c.statement} {SLIP}" if c.slip else c.statement
        rows.append([entry.name, statement, c.predicted, c.measured, c.tolerance, c.holds, c.expected])
    return pd.DataFrame(rows, columns=COLUMNS)


def run(names: Sequence[str] | None = None, out: Path | None = None, *, progress: "Progress" = None) -> pd.DataFrame:
    """Measure the named checks (all by default); with `out`, draw their pictures and write the table there.

    An interruption keeps the completed checks, and writes no table.

    >>> import induction_memory as im
    >>> im.paper.theory.run(["lemma-1"])[["check", "expected"]].head(2)
         check  expected
    0  lemma-1      True
    1  lemma-1      True
    """
    if out is not None:
        out = require_folder(out)
    tables, before = [], interruptions()
    with keeping(tables, "checks"):
        for entry, result in measure(names, progress=progress):
            tables.append(table(entry, result))
            if out is not None:
                save_picture(entry, result, out)
    whole = pd.concat(tables, ignore_index=True)
    if out is not None and interruptions() == before:
        write_file(out / "theory.csv", whole.to_csv(index=False))
    return whole


def save_picture(entry: Entry, result: Result, folder: Path) -> Path | None:
    """Draw a check's picture into `folder`; None if it has none."""
    from induction_memory.paper.theory.pictures import draw

    figure = draw(entry.name, result.tables)
    if figure is None:
        return None
    path = folder / f"{entry.name}.png"
    write_figure(figure, path, dpi=110)
    return path
