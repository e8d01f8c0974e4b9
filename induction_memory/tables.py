"""Tables for people and programs: text for a terminal, CSV, one JSON document, Parquet, or Markdown.

In a terminal a table has chosen columns, a value and its standard error in one cell, and as many digits as the error
allows: two digits of the error, and the value to the same place. A text column that is too wide is wrapped, so that
every line fits the terminal. CSV, JSON and files hold all columns and all digits.
"""

import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from induction_memory.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["table", "csv", "json"]
ENDINGS = (".csv", ".json", ".parquet")
ERROR = "_se"
"""The column X_se is the standard error of X."""
DIGITS = 3
WIDTH = 80
GAP = "  "


def show(table: "pd.DataFrame", format: Format = "table", columns: Sequence[str] | None = None) -> None:
    """Print a table and nothing else on standard output; `columns` are those that the terminal shows, None for all."""
    if format == "csv":
        text = table.to_csv(index=False)
    elif format == "json":
        text = (table.to_json(orient="records", double_precision=15) or "[]") + "\n"
    else:
        text = terminal(table, columns, shutil.get_terminal_size((WIDTH, 24)).columns) + "\n"
    sys.stdout.write(text)


def terminal(table: "pd.DataFrame", columns: Sequence[str] | None = None, width: int = WIDTH) -> str:
    """The table as text, in lines of at most `width` characters where wrapping its text columns allows that."""
    chosen = [name for name in (table.columns if columns is None else columns) if name in table.columns]
    if columns is not None or set(_valued(chosen)) != set(chosen):
        chosen = _valued(chosen)
    cells = {name: _cells(table, name) for name in chosen}
    numeric = {name for name in chosen if table[name].dtype.kind in "iuf"}
    widths = _fitted({name: [name, *cells[name]] for name in chosen}, numeric, width)
    lines = _row({name: name for name in chosen}, widths, numeric)
    for i in range(len(table)):
        lines += _row({name: cells[name][i] for name in chosen}, widths, numeric)
    return "\n".join(lines)


def number(value: float, error: float = math.nan) -> str:
    """A value with its standard error, or three digits of a value that has none.

    >>> number(0.97712, 0.00643)
    '0.9771 ± 0.0064'
    >>> number(1234.5, 31.0), number(0.0123456), number(2.0), number(float("nan"))
    ('1234 ± 31', '0.0123', '2', '')
    """
    if not math.isfinite(value):
        return "" if math.isnan(value) else str(value)
    if not math.isfinite(error) or error <= 0:
        return f"{value:.{DIGITS}g}" if abs(value) < 1000 else f"{value:.0f}"
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{places}f} ± {error:.{places}f}"


def markdown(table: "pd.DataFrame", digits: int = DIGITS) -> str:
    """The table in Markdown; a bar in a cell is escaped, so that it ends no column."""

    def row(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    def cell(value: Any) -> str:
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return "" if missing else f"{value:.{digits}g}" if isinstance(value, float) else str(value)

    lines = [row(list(table.columns)), row(["---"] * len(table.columns))]
    return "\n".join(lines + [row([cell(value) for value in values]) for values in table.itertuples(index=False)])


def require_file_name(path: Path) -> None:
    """Refuse a path that `save` could not write to; asked before the work that the table costs."""
    require(path.suffix in ENDINGS, "--out", f"a file ending in {', '.join(ENDINGS)}", repr(str(path)))
    require(not path.is_dir(), "--out", "a file", f"the folder {str(path)!r}")


def save(table: "pd.DataFrame", path: Path) -> None:
    """Write a table by the ending of its file's name."""
    require_file_name(path)
    writers = {
        ".csv": lambda: table.to_csv(path, index=False),
        ".json": lambda: table.to_json(path, orient="records", double_precision=15),
        ".parquet": lambda: table.to_parquet(path, index=False),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[path.suffix]()
    except OSError as error:
        raise InputError(f"--out: expected a file that can be written, got {str(path)!r} ({error.strerror})") from error


def _valued(names: Sequence[str]) -> list[str]:
    """The columns without the standard errors of others among them, which share a cell with their value."""
    return [name for name in names if not (name.endswith(ERROR) and name.removesuffix(ERROR) in names)]


def _cells(table: "pd.DataFrame", name: str) -> list[str]:
    values = table[name].tolist()
    errors = table[name + ERROR].tolist() if name + ERROR in table.columns else [math.nan] * len(values)
    return [_cell(value, error) for value, error in zip(values, errors, strict=True)]


def _cell(value: Any, error: float) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, error) if isinstance(value, float) else str(value)


def _fitted(cells: Mapping[str, Sequence[str]], numeric: set[str], width: int) -> dict[str, int]:
    """Widths of the columns: as wide as their cells, the widest text narrowed until the table fits, if it can."""
    widths = {name: max(map(len, column)) for name, column in cells.items()}
    words = {name: [word for cell in column for word in cell.split()] for name, column in cells.items()}
    least = {name: max(map(len, found), default=1) for name, found in words.items()}
    text = [name for name in cells if name not in numeric]
    while sum(widths.values()) + len(GAP) * (len(widths) - 1) > width:
        narrowable = [name for name in text if widths[name] > least[name]]
        if not narrowable:
            break
        widths[max(narrowable, key=lambda name: widths[name])] -= 1
    return widths


def _row(cells: Mapping[str, str], widths: Mapping[str, int], numeric: set[str]) -> list[str]:
    """The lines of one row: numbers to the right, text to the left and wrapped."""
    wrapped = {name: textwrap.wrap(cell, max(widths[name], 1)) or [""] for name, cell in cells.items()}
    lines = []
    for i in range(max(map(len, wrapped.values()), default=0)):
        parts = [lines_of[i] if i < len(lines_of) else "" for lines_of in wrapped.values()]
        aligned = [
            part.rjust(widths[name]) if name in numeric else part.ljust(widths[name])
            for name, part in zip(wrapped, parts, strict=True)
        ]
        lines.append(GAP.join(aligned).rstrip())
    return lines
