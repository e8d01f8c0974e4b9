"""What a terminal or a notebook shows: tables, and a line of progress for work that takes more than a moment.

In a terminal a table has chosen columns, a value and its standard error in one cell, and as many digits as the error
allows: two digits of the error, and the value to the same place. Text that is too wide is wrapped. Columns of numbers
that do not fit beside each other are shown in blocks below each other. Columns that many rows share can be headings
above these rows. CSV, JSON, Parquet and Markdown hold all columns.

The line of progress appears after two seconds, so that quick calls stay silent, and is cleared when the work is done.
It goes to standard error. In a terminal or a notebook it is rewritten, without a thread or a hidden cursor, so that an
interruption leaves nothing behind; elsewhere, as in a log, a plain line is printed every ten seconds. Nested work
shares the line: `steps 3/31, patched runs ...`. The time left is the outermost work's.
"""

import itertools
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
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
"""The assumed width of a terminal that does not tell it, in characters."""
NARROW = 6
"""Columns that text keeps, however narrow the terminal is."""
GAP = "  "
_BREAK = re.compile(r"(?<!^W)(?<!_W)_")
"""Where a name may be broken: after an underscore, but not within W_K1."""


def show(
    table: "pd.DataFrame", format: Format = "table", columns: Sequence[str] | None = None, groups: Sequence[str] = ()
) -> None:
    """Print the table, and nothing else, on standard output. The terminal shows `columns`, or all if None."""
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
    """The table as text; its text columns are wrapped to keep lines within `width` characters.

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
    names = [name for name in table.columns if name not in groups] if columns is None else columns
    names = [name for name in names if name in table.columns and name not in groups]
    names = [name for name in names if not (name.endswith(ERROR) and name.removesuffix(ERROR) in names)]
    cells = {name: _cells(table, name) for name in names}
    numeric = {name for name in names if table[name].dtype.kind in "iuf"}
    rows = table[list(groups)].itertuples(index=False) if groups else ()
    headings = [", ".join(filter(None, map(_word, row))) for row in rows]
    room = width - len(GAP) * bool(groups)
    blocks = _blocks(cells, numeric, room)
    return "\n\n".join(_block({name: cells[name] for name in block}, numeric, room, headings) for block in blocks)


def _block(cells: Mapping[str, Sequence[str]], numeric: set[str], width: int, headings: Sequence[str]) -> str:
    """Columns side by side: numbers to the right, text to the left. A heading stands above the rows that share it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    begins = [heading != before for before, heading in itertools.pairwise(["", *headings])]
    shown = Table(box=None, pad_edge=False, header_style="", padding=(0, len(GAP), 0, 0))
    for name in cells:
        right = name in numeric
        size = _size(name, cells[name])
        header = Text("\n".join(textwrap.wrap(_BREAK.sub("_ ", name), size)).replace("_ ", "_"))
        if right:  # a number is never cut, even if its line becomes too long
            shown.add_column(header, justify="right", no_wrap=True, min_width=size)
        else:
            shown.add_column(header, overflow="fold", min_width=min(size, NARROW))
    rows = list(zip(*cells.values(), strict=True))
    for row, begin in zip(rows, [*begins, *[False] * (len(rows) - len(begins))], strict=True):
        shown.add_row(*(Text("\n" * begin + cell) for cell in row))  # the empty line becomes the heading
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    if not headings:
        return "\n".join(lines)
    above = itertools.compress(headings, begins)
    return "\n".join(GAP + line if line else textwrap.fill(next(above), width + len(GAP)) for line in lines)


def _size(name: str, cells: Sequence[str]) -> int:
    """The width of a column if only its name is wrapped."""
    return max(map(len, [*_BREAK.sub("_ ", name).split(), *cells]))


def _blocks(cells: Mapping[str, Sequence[str]], numeric: set[str], width: int) -> list[list[str]]:
    """Columns of numbers that do not fit go into blocks below, which repeat the text columns.

    If the text columns leave no room, only the first columns that tell all rows apart are repeated.
    """
    widths = {name: _size(name, column) for name, column in cells.items()}
    widths = {name: size if name in numeric else min(size, width // 3) for name, size in widths.items()}
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
    """The numbers of a column with equal decimal places, so that the largest shows three digits."""
    sizes = [abs(value) for value in values if math.isfinite(value) and value]
    whole = all(value == round(value) for value in sizes)
    if whole or max(sizes) > RANGE * min(sizes) or max(sizes) < 10**-PLACES:
        return [number(value) for value in values]
    places = max(0, DIGITS - 1 - math.floor(math.log10(max(sizes)))) if max(sizes) < 1000 else 0
    return [_fixed(value, places) if math.isfinite(value) else number(value) for value in values]


def number(value: float, error: float = math.nan) -> str:
    """A value with its standard error, to two digits of the error; without an error, three digits of the value.

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


def _no_formula(value: Any) -> Any:
    formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@\t\r"
    return f"'{value}" if formula else value


def _harmless(cell: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(cell).replace("|", "\\|"))


def save(table: "pd.DataFrame", path: Path) -> None:
    """Write a table in the format of the file's ending."""
    require_file(path, ENDINGS, "--out")
    contents = {
        ".csv": lambda: csv(table),
        ".json": lambda: table.to_json(orient="records", double_precision=15) or "[]",
        ".parquet": lambda: table.to_parquet(index=False),
    }
    write_file(path, contents[path.suffix](), "--out")


Item = TypeVar("Item")

Progress = Callable[[int, int], object] | Literal[False] | None
"""None: the line of progress. False: nothing is shown. A function is called with (done, total)."""

PATIENCE = 2.0
"""Seconds before the line appears."""
PAUSE = 0.1
"""Seconds between two updates of the line."""
LOG_PAUSE = 10.0
"""Seconds before the first line, and between two lines, where lines are not rewritten (as in a log)."""
BAR_WIDTH = 30
"""Characters of the bar, at most."""


def track(
    items: Iterable[Item],
    what: str,
    total: int | None = None,
    *,
    progress: "Progress" = None,
    before: int = 0,
) -> Generator[Item, None, None]:
    """The items one by one, with a line that says what is being done, how much is done, and the time left.

    `total` is the number of items. A function `progress` also counts what was done `before`. Work nested in hidden work
    is hidden too. If both have the same `progress` function, only the outer one calls it.

    >>> list(track([1, 2, 3], "counting"))
    [1, 2, 3]
    """
    if total is None:
        items = list(items)
        total = len(items)
    if total == 1 and progress is None:
        yield from items
        return
    cell = notebook_cell()
    work = _Work(what, total, cell, time.monotonic(), progress)
    _UNDER_WAY[:] = [other for other in _UNDER_WAY if other.cell == cell]  # an error may have left some
    tell = None if any(other.progress is progress for other in _UNDER_WAY) else progress
    _UNDER_WAY.append(work)
    live = cell is not None or sys.stderr.isatty()
    patience, pause = (PATIENCE, PAUSE) if live else (LOG_PAUSE, LOG_PAUSE)
    try:
        for item in items:
            yield item
            now = time.monotonic()
            work.done, work.seconds = work.done + 1, now - work.began
            if callable(tell):
                tell(before + work.done, before + max(total, work.done))
            due = now - _UNDER_WAY[0].began > patience and now - _LINE.written > pause
            if due and all(other.progress is None for other in _UNDER_WAY):
                _LINE.write(_described(_UNDER_WAY, now, _columns() if live else 0))
    finally:
        if work in _UNDER_WAY:
            _UNDER_WAY.remove(work)
        if not _UNDER_WAY:
            _LINE.write("")


def notebook_cell() -> int | None:
    """The number of the notebook's cell that runs; None outside a notebook, even if IPython is imported."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return None if shell is None else shell.execution_count


@dataclass(eq=False)
class _Work:
    """Work in progress: its name, how much is done, when it started, and in which cell of a notebook."""

    what: str
    total: int
    cell: int | None
    began: float
    progress: "Progress" = None
    done: int = 0
    seconds: float = 0.0
    """Seconds from the start to the last completed item."""


class Line:
    """One line that is rewritten in place, in a terminal or a notebook's cell; elsewhere each text is a line."""

    def __init__(self) -> None:
        self.text, self.written = "", 0.0
        self._cell: int | None = None
        self._output: Any = None

    def write(self, text: str) -> None:
        """Replace the line by this text; "" clears it."""
        if text == self.text == "":
            return
        cell = notebook_cell()
        if sys.stderr.isatty():  # narrower than the terminal, because a wrapped line cannot be rewritten
            text = text[: _columns() - 1]
            print(f"\r{text.ljust(len(self.text))}", end="" if text else "\r", file=sys.stderr, flush=True)
        elif self._output is not None and self._cell == cell:
            self._output.update({"text/plain": text}, raw=True)
        elif cell is not None:
            from IPython.display import display

            self._output, self._cell = display({"text/plain": text}, raw=True, display_id=True), cell
        elif text:
            print(text, file=sys.stderr, flush=True)
        self.text, self.written = text, time.monotonic()


_UNDER_WAY: list[_Work] = []
"""The outermost work first."""
_LINE = Line()


def _columns() -> int:
    """How wide the terminal is."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH
    except (OSError, ValueError):  # a notebook, or a stream without a descriptor
        return WIDTH


def _described(works: Sequence[_Work], now: float, columns: int = WIDTH) -> str:
    """A description of all work in progress, with a bar for the innermost that fills the width.

    >>> works = [_Work("steps", 3, None, began=0.0, done=1, seconds=10.0), _Work("runs", 60, None, began=10.0, done=15)]
    >>> _described(works, now=15.0)
    'steps 2/3, runs #######....................... 15/60, 0:15 left'
    >>> _described(works, now=15.0, columns=50)
    'steps 2/3, runs ####............ 15/60, 0:15 left'
    """
    *outer, inner = works
    what = "".join(f"{work.what} {min(work.done + 1, work.total)}/{work.total}, " for work in outer) + inner.what
    count = f"{inner.done:>{len(str(inner.total))}}/{inner.total}"
    if (first := works[0]).done:
        left = round(max(0.0, first.seconds * first.total / first.done - (now - first.began)))
        count += f", {left // 60}:{left % 60:02} left"
    width = min(BAR_WIDTH, columns - len(what) - len(count) - 3)
    bar = ("#" * (width * inner.done // inner.total)).ljust(width, ".") + " " if width > 0 else ""
    return f"{what} {bar}{count}"


@contextmanager
def keeping(done: Sized, what: str) -> Iterator[None]:
    """An interruption (Ctrl-C) ends the block and keeps completed results; without any, it is raised.

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
        _LINE.write("")
        _cut.append(what)
        print(f"interrupted: {len(done)} {what} are kept", file=sys.stderr)


_cut: list[str] = []


def interruptions() -> int:
    """How many results of this process an interruption has left incomplete."""
    return len(_cut)
