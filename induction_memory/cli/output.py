"""The output of a command's table: the terminal, CSV or JSON on standard output, or a file."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from induction_memory.cli.arguments import OptionalPath
from induction_memory.errors import printable
from induction_memory.files import require_file
from induction_memory.terminal import ENDINGS, Columns, Format

if TYPE_CHECKING:
    import pandas as pd

CONTEXT = ("run", "step", "memory", "edit", "input", "output", "head", "through")
"""Columns printed once above the table if all rows have the same value."""


@dataclass(frozen=True)
class Output:
    """The options of every command that ends with a table."""

    format: Format = "table"
    """table, csv or json."""

    columns: Columns = "chosen"
    """Columns in the terminal; csv, json and files always have all."""

    out: OptionalPath = None
    """Write to a .csv, .json or .parquet file instead."""

    def __post_init__(self) -> None:
        if self.out is not None:
            require_file(self.out, ENDINGS, "--out")

    def write(
        self, table: "pd.DataFrame", columns: Sequence[str] | None = None, *, empty: str = "no rows", note: str = ""
    ) -> None:
        """Print the table, or save it and print the path. The terminal shows `columns`; `empty` says why it is empty.

        A `note` on units is printed below the table in the terminal. Rows appear in the order given. After an
        interruption, the file is NAME.part.csv.
        """
        from induction_memory.terminal import interruptions, save, show

        if self.out is not None:  # no complete file is replaced by an incomplete one
            path = self.out.with_stem(f"{self.out.stem}.part") if interruptions() else self.out
            save(table, path)
            print(printable(str(path)))
            return
        if table.empty:
            print(empty, file=sys.stderr)
        elif self.format == "table" and self.columns == "chosen":
            constant = {name: said[0] for name in CONTEXT if len(said := _values(table, name)) == 1 and len(table) > 1}
            said = [f"{name} {value}" for name, value in constant.items() if value]
            if said:
                print(printable(", ".join(said)))
            table = table.drop(columns=[*constant])
        if not (table.empty and self.format == "table"):
            show(table, self.format, columns if self.columns == "chosen" else None)
            if note and self.format == "table":
                print(note)


def _values(table: "pd.DataFrame", name: str) -> list[str]:
    """The different values of a column, as text; none if there is no such column."""
    return list(dict.fromkeys(map(str, table[name].tolist()))) if name in table.columns else []


TableOutput = Annotated[Output, tyro.conf.arg(name="")]

TERMINAL = Output()
