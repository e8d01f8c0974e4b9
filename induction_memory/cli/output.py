"""Where a command's table goes: the terminal, CSV or JSON on standard output, or a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from induction_memory.tables import Format, require_file_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Output:
    """The options of every command that ends with a table."""

    format: Format = "table"
    """table, csv or json."""

    out: Path | None = None
    """Write to a .csv, .json or .parquet file instead."""

    def __post_init__(self) -> None:
        if self.out is not None:
            require_file_name(self.out)

    def write(self, table: "pd.DataFrame") -> None:
        """Print the table, or save it and print the path."""
        from induction_memory.tables import save, show

        if self.out is None:
            show(table, self.format)
        else:
            save(table, self.out)
            print(self.out)


TableOutput = Annotated[Output, tyro.conf.arg(name="")]

TERMINAL = Output()
