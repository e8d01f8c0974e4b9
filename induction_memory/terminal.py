"""Tables for people and programs: text for a terminal, CSV, one JSON document, Parquet, or Markdown.

In a terminal a table has chosen columns, a value and its standard error in one cell, and as many digits as the error
allows: two digits of the error, and the value to the same place. A text column or a name that is too wide is wrapped.
Columns of numbers that do not fit beside each other are shown in blocks below each other. Columns that many rows share
can be headings above these rows. CSV, JSON and files hold all columns and all digits.

A line of progress for work that takes more than a moment, in a terminal and in a notebook.

The line appears after one second, so that quick calls stay silent, and is cleared when the work is done. It goes to
standard error, and only to a terminal or a notebook. One line is rewritten in place, without a thread or a hidden
cursor, so that an interruption leaves nothing behind. It is narrower than the terminal, because a wrapped line cannot
be rewritten. In a notebook it is one output of the cell, which is empty in the end. Nested work shares the line:
`steps 3/31, patched runs ...`. The time left is that of the outermost work.
"""

import itertools
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from induction_memory.errors import printable
from induction_memory.files import require_file, write_file

if TYPE_CHECKING:
    import pandas as pd


Format = Literal["table", "csv", "json"]
Columns = Literal["chosen", "all"]
ENDINGS = (".csv", ".json", ".parquet")
ERROR = "_se"
"""The column X_se is the standard error of X."""
KEYS = ("step", "layer", "figure")
"""Columns of whole numbers that name a row."""
DIGITS = 3
PLACES = 4
"""Decimal places of a value with an error, at most."""
RANGE = 1e4
"""In a column whose sizes differ by more than this factor, each number has its own number of places."""
WIDTH = 80
SHORT = 16
"""Columns of text of at most this width are wrapped only if narrowing the others does not suffice."""
GAP = "  "
_BREAK = re.compile(r"(?<!^W)(?<!_W)_")
"""Where a name may be broken: after an underscore, but not within W_K1."""


def show(
    table: "pd.DataFrame", format: Format = "table", columns: Sequence[str] | None = None, groups: Sequence[str] = ()
) -> None:
    """Print only the table on standard output; `columns` are those that the terminal shows, None for all."""
    if format == "csv":
        text = csv(table)
    elif format == "json":
        text = (table.to_json(orient="records", double_precision=15) or "[]") + "\n"
    else:
        text = terminal(table, columns, shutil.get_terminal_size((WIDTH, 24)).columns, groups) + "\n"
    sys.stdout.write(text)


def csv(table: "pd.DataFrame") -> str:
    """The table as CSV; text that a spreadsheet would take for a formula begins with an apostrophe.

    >>> import pandas as pd
    >>> print(csv(pd.DataFrame({"token": ["=1+1", "-", "a"], "score": [-1.5, 0.0, 2.0]})), end="")
    token,score
    '=1+1,-1.5
    -,0.0
    a,2.0
    """
    text = [name for name in table.columns if table[name].dtype.kind not in "iufb"]
    return table.assign(**{name: table[name].map(_no_formula) for name in text}).to_csv(index=False)


def terminal(
    table: "pd.DataFrame", columns: Sequence[str] | None = None, width: int = WIDTH, groups: Sequence[str] = ()
) -> str:
    """The table as text, in lines of at most `width` characters where wrapping its text columns allows that.

    Columns in `groups` become headings: a value stands once above the rows that share it.

    >>> import pandas as pd
    >>> rows = {"verdict": ["fails", "holds", "holds"], "measure": ["recall", "loss", "accuracy"], "value": [0.1, 1, 2]}
    >>> print(terminal(pd.DataFrame(rows), groups=["verdict"]))
      measure   value
    fails
      recall     0.10
    holds
      loss       1.00
      accuracy   2.00
    """
    asked = [name for name in (table.columns if columns is None else columns) if name not in groups]
    chosen = _valued([name for name in asked if name in table.columns])
    cells = {name: [_BREAK.sub("_ ", name), *_cells(table, name)] for name in chosen}
    numeric = {name for name in chosen if table[name].dtype.kind in "iuf"}
    natural = {name: max(map(len, [*cells[name][0].split(), *cells[name][1:]])) for name in chosen}
    headings = [", ".join(filter(None, map(_word, row))) for row in table[list(groups)].itertuples(index=False)]
    indent = GAP if groups else ""
    blocks = []
    for names in _blocks(cells, natural, numeric, width - len(indent)):
        beside = {name: cells[name] for name in names}
        widths = _fitted({name: natural[name] for name in names}, beside, numeric, width - len(indent))
        header, *rows = [_lines({name: cells[name][i] for name in names}, widths) for i in range(len(table) + 1)]
        height = max(map(len, header.values()))
        header = {name: [""] * (height - len(lines)) + lines for name, lines in header.items()}
        shown = [textwrap.indent("\n".join(_row(lines, widths, numeric)), indent) for lines in (header, *rows)]
        for i, (before, heading) in enumerate(itertools.pairwise(["", *headings]), 1):
            if heading != before:
                shown[i] = f"{heading}\n{shown[i]}"
        blocks.append("\n".join(shown))
    return "\n\n".join(blocks)


def number(value: float, error: float = math.nan) -> str:
    """A value with its standard error to two digits of the error, or three digits of a value that has none.

    >>> number(0.97712, 0.00643)
    '0.9771 ± 0.0064'
    >>> number(1234.5, 31.0), number(0.0123456), number(2.0), number(float("nan"))
    ('1234 ± 31', '0.0123', '2', '')

    An error that is zero in the fourth place is not shown, nor is the sign of a zero.

    >>> number(1 / 3, 1e-9), number(-0.00001, 0.0002)
    ('0.3333', '0.0000 ± 0.0002')
    """
    if not math.isfinite(value):
        return "" if math.isnan(value) else str(value)
    if not math.isfinite(error) or error <= 0:
        return f"{value:.{DIGITS}g}" if abs(value) < 1000 else f"{value:.0f}"
    if error < 10**-PLACES / 2:
        return _fixed(value, PLACES)
    places = min(max(0, 1 - math.floor(math.log10(error))), PLACES)
    return f"{_fixed(value, places)} ± {error:.{places}f}"


def _fixed(value: float, places: int) -> str:
    """The value with this number of decimal places; zero has no sign."""
    return f"{round(value, places) + 0.0:.{places}f}"


def markdown(table: "pd.DataFrame", digits: int = DIGITS) -> str:
    """The table in Markdown; cells are escaped, so that they cannot end a column or a line or contain HTML."""

    def row(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(_harmless(str(cell)) for cell in cells) + " |"

    def cell(value: Any) -> str:
        missing = value is None or (isinstance(value, float) and math.isnan(value))
        return "" if missing else f"{value:.{digits}g}" if isinstance(value, float) else str(value)

    lines = [row(list(table.columns)), row(["---"] * len(table.columns))]
    return "\n".join(lines + [row([cell(value) for value in values]) for values in table.itertuples(index=False)])


def save(table: "pd.DataFrame", path: Path) -> None:
    """Write a table by the ending of its file's name."""
    require_file(path, ENDINGS, "--out")
    contents = {
        ".csv": lambda: csv(table),
        ".json": lambda: table.to_json(orient="records", double_precision=15) or "[]",
        ".parquet": lambda: table.to_parquet(index=False),
    }
    write_file(path, contents[path.suffix](), "--out")


def _no_formula(value: Any) -> Any:
    formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r"
    return f"'{value}" if formula else value


def _harmless(cell: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(cell).replace("|", "\\|"))


def _valued(names: Sequence[str]) -> list[str]:
    """The columns without standard errors of other columns, which share a cell with their value."""
    return [name for name in names if not (name.endswith(ERROR) and name.removesuffix(ERROR) in names)]


def _cells(table: "pd.DataFrame", name: str) -> list[str]:
    values = table[name].tolist()
    if name + ERROR in table.columns:
        return [number(value, error) for value, error in zip(values, table[name + ERROR].tolist(), strict=True)]
    if table[name].dtype.kind == "f":
        return _aligned(values)
    return [_word(value) for value in values]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else printable(str(value))


def _aligned(values: Sequence[float]) -> list[str]:
    """Numbers of one column with the same number of places: three digits of the largest."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    whole = all(value == round(value) for value in sizes)
    if whole or max(sizes) > RANGE * min(sizes) or max(sizes) < 10**-PLACES:
        return [number(value) for value in values]
    places = max(0, DIGITS - 1 - math.floor(math.log10(max(sizes)))) if max(sizes) < 1000 else 0
    return [_fixed(value, places) if math.isfinite(value) else number(value) for value in values]


def _blocks(
    cells: Mapping[str, Sequence[str]], natural: Mapping[str, int], numeric: set[str], width: int
) -> list[list[str]]:
    """Columns of numbers that do not fit side by side go into blocks below, which repeat the text columns.

    If the text columns leave no room, only the first columns that tell all rows apart are repeated.
    """
    widths = {name: size if name in numeric else min(size, width // 3) for name, size in natural.items()}
    keys = [name for name in cells if name not in numeric or name in KEYS]
    room = width - sum(widths[name] + len(GAP) for name in keys)
    if room < max((widths[name] for name in cells if name not in keys), default=0):
        keys = _naming(cells)
        room = width - sum(widths[name] + len(GAP) for name in keys)
    blocks: list[list[str]] = [[]]
    for name in cells:
        if name not in keys:
            used = sum(widths[other] + len(GAP) for other in blocks[-1])
            if blocks[-1] and used + widths[name] > room:
                blocks.append([])
            blocks[-1].append(name)
    return [[name for name in cells if name in keys or name in block] for block in blocks]


def _naming(cells: Mapping[str, Sequence[str]]) -> list[str]:
    """The fewest of the first columns that tell all rows apart; all columns if there are equal rows."""
    names = list(cells)
    for n in range(1, len(names)):
        rows = list(zip(*(cells[name] for name in names[:n]), strict=True))
        if len(set(rows)) == len(rows):
            return names[:n]
    return names


def _fitted(
    natural: Mapping[str, int], cells: Mapping[str, Sequence[str]], numeric: set[str], width: int
) -> dict[str, int]:
    """Widths of the columns: as wide as their cells, then text narrowed until the table fits, if it can.

    The column that is widest relative to the mean length of its cells is narrowed first, so that columns of long text
    end up with about the same number of lines.
    """
    widths = dict(natural)
    text = [name for name in cells if name not in numeric]
    least = {name: max(len(part) for cell in ("-", *cells[name]) for part in _parts(cell)) for name in text}
    mean = {name: max(1, sum(map(len, cells[name][1:])) / max(1, len(cells[name]) - 1)) for name in text}
    while sum(widths.values()) + len(GAP) * (len(widths) - 1) > width:
        narrowable = [name for name in text if widths[name] > least[name]]
        if not narrowable:
            break
        long = [name for name in narrowable if widths[name] > SHORT] or narrowable
        widths[max(long, key=lambda name: widths[name] / mean[name])] -= 1
    return widths


def _parts(cell: str) -> list[str]:
    """The pieces between which a cell can be wrapped: words, and parts of words up to a hyphen."""
    return textwrap.wrap(cell, 1, break_long_words=False)


def _wrapped(cell: str, width: int) -> list[str]:
    """The lines of a cell. A name with underscores is broken after an underscore, and only if it is too long."""
    lines = textwrap.wrap(cell.replace("_ ", "_"), max(width, 1), break_long_words=False) or [""]
    if max(map(len, lines)) <= width:
        return lines
    return [line.replace("_ ", "_") for line in textwrap.wrap(cell, max(width, 1))]


def _lines(cells: Mapping[str, str], widths: Mapping[str, int]) -> dict[str, list[str]]:
    return {name: _wrapped(cell, widths[name]) for name, cell in cells.items()}


def _row(wrapped: Mapping[str, Sequence[str]], widths: Mapping[str, int], numeric: set[str]) -> list[str]:
    """The lines of one row: numbers to the right, text to the left."""
    lines = []
    for parts in itertools.zip_longest(*wrapped.values(), fillvalue=""):
        aligned = [
            part.rjust(widths[name]) if name in numeric else part.ljust(widths[name])
            for name, part in zip(wrapped, parts, strict=True)
        ]
        lines.append(GAP.join(aligned).rstrip())
    return lines


Item = TypeVar("Item")

PATIENCE = 1.0
"""Seconds before the line appears."""
PAUSE = 0.1
"""Seconds between two updates of the line."""
BAR_WIDTH = 30
"""Characters of the bar, at most."""
COLUMNS = 80
"""Characters of the line if the width of the terminal is unknown."""


def track(
    items: Iterable[Item], what: str, total: int | None = None, size: Callable[[Item], int] = lambda item: 1
) -> Iterator[Item]:
    """The items one by one, with a line that says what is done, how much of it, and how long the rest takes.

    `total` is the sum of the items' sizes, by default their number.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None:
        items = list(items)
        total = sum(map(size, items))
    if total == 1 or not (sys.stderr.isatty() or in_notebook()):
        yield from items
        return
    work = _Work(what, total)
    _UNDER_WAY[:] = [other for other in _UNDER_WAY if other.cell == work.cell]  # an error may have left some
    _UNDER_WAY.append(work)
    try:
        for item in items:
            yield item
            work.done += size(item)
            work.seconds = time.monotonic() - work.began
            _show()
    finally:
        if work in _UNDER_WAY:
            _UNDER_WAY.remove(work)
        if not _UNDER_WAY:
            _LINE.clear()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, not only a program that has imported IPython."""
    if "ipykernel" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return get_ipython() is not None


def _cell() -> int:
    """The number of the notebook's cell that runs; 0 elsewhere."""
    if not in_notebook():
        return 0
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "execution_count", 0)


@dataclass(eq=False)
class _Work:
    """Work that is under way: what, how much of it is done, since when, and in which cell."""

    what: str
    total: int
    done: int = 0
    seconds: float = 0.0
    """Seconds from the start to the last completed item."""
    began: float = field(default_factory=time.monotonic)
    cell: int = field(default_factory=_cell)


_UNDER_WAY: list[_Work] = []
"""The outermost work first."""


class CellOutput:
    """One line of text among the outputs of a notebook's cell; each later line in the cell replaces it."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._cell = -1

    def write(self, text: str) -> None:
        if self._shown is None or self._cell != _cell():
            from IPython.display import display

            self._shown, self._cell = display({"text/plain": text}, raw=True, display_id=True), _cell()
        else:
            self._shown.update({"text/plain": text}, raw=True)


class _Line:
    """The one line that is rewritten in place: in a terminal, or as one output of a notebook's cell."""

    def __init__(self) -> None:
        self.text, self.written = "", 0.0
        self.output = CellOutput()

    def write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text.ljust(len(self.text))}")
            sys.stderr.flush()
        else:
            self.output.write(text)
        self.text, self.written = text, time.monotonic()

    def clear(self) -> None:
        if self.text and sys.stderr.isatty():
            sys.stderr.write(f"\r{' ' * len(self.text)}\r")
            sys.stderr.flush()
        elif self.text:
            self.output.write("")
        self.text, self.written = "", 0.0


_LINE = _Line()


def _show() -> None:
    """Write the line, once the outermost work takes long: all work under way, with the bar of the innermost."""
    now, (*outer, inner) = time.monotonic(), _UNDER_WAY
    if now - _UNDER_WAY[0].began > PATIENCE and now - _LINE.written > PAUSE:
        before = "".join(f"{work.what} {min(work.done + 1, work.total)}/{work.total}, " for work in outer)
        _LINE.write(line(before + inner.what, inner.done, inner.total, _left(_UNDER_WAY[0], now), _columns()))


def _columns() -> int:
    """How wide the terminal is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):  # a notebook, or a stream without a descriptor
        return COLUMNS


def _left(work: _Work, now: float) -> float | None:
    """Seconds that the rest takes at the present pace; None before the first item is done."""
    return max(0.0, work.seconds * work.total / work.done - (now - work.began)) if work.done else None


@contextmanager
def keeping(done: Sized, what: str) -> Iterator[None]:
    """An interruption (Ctrl-C) ends the block and keeps what is done so far; it is raised if nothing is done.

    >>> steps = []
    >>> with keeping(steps, "steps"):
    ...     for step in (0, 100, 200):
    ...         if step == 200:
    ...             raise KeyboardInterrupt
    ...         steps.append(step)
    >>> steps
    [0, 100]
    """
    try:
        yield
    except KeyboardInterrupt:
        if not len(done):
            raise
        _LINE.clear()
        print(f"interrupted: {len(done)} {what} are kept", file=sys.stderr)


def line(what: str, done: int, total: int, left: float | None, columns: int = COLUMNS) -> str:
    """What is written after some of the work; the bar is as long as the columns allow.

    >>> line("ablating", 15, 60, 15.0)
    'ablating #######....................... 15/60, 0:15 left'
    >>> line("ablating", 15, 60, None, columns=30)
    'ablating ###........... 15/60'
    """
    count = f"{done:>{len(str(total))}}/{total}"
    if left is not None:
        count += f", {round(left) // 60}:{round(left) % 60:02} left"
    width = min(BAR_WIDTH, columns - len(what) - len(count) - 3)
    bar = ("#" * int(width * done / total if total else width)).ljust(width, ".") + " " if width > 0 else ""
    return f"{what} {bar}{count}"[: columns - 1]
