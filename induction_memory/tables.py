"""Tables for people and programs: text for a terminal, CSV, one JSON document, or Parquet."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from induction_memory.errors import InputError, require

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["table", "csv", "json"]
ENDINGS = (".csv", ".json", ".parquet")


def show(table: "pd.DataFrame", format: Format = "table") -> None:
    """Print a table and nothing else on standard output."""
    if format == "csv":
        text = table.to_csv(index=False)
    elif format == "json":
        text = (table.to_json(orient="records", double_precision=15) or "[]") + "\n"
    else:
        text = table.to_string(index=False, float_format=lambda x: f"{x:.4g}", na_rep="") + "\n"
    sys.stdout.write(text)


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
