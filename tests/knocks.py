"""Counts of what the tests of reliability did, printed at the end of a run of pytest.

A test takes the fixture `knocks` and says what it did to how much: `knocks["byte flips"] += 1`. The counts travel with
the test's report, so that they add up over the processes of pytest-xdist.

    python -m tests.knocks quick.log hard.log

puts the counts that `make test` and `make test-hard` have printed, kept in these two files, into docs/reliability.md.
Several lines of counts in one file are added up, for a run that was made in parts.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROPERTY = "knocks"
BEGIN = "hard knocks: "
PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"
TABLE = ("<!-- counts, by tests/knocks.py -->", "<!-- end of the counts -->")


def total(reports: Iterable[Any]) -> Counter[str]:
    """The counts in the reports of the end of each test."""
    counts: Counter[str] = Counter()
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY and report.when == "teardown":
                counts.update(value)
    return counts


def line(counts: Counter[str]) -> str:
    """One line: `hard knocks: 240 byte flips, 20 kills`."""
    return BEGIN + "; ".join(f"{counts[name]:,} {name}" for name in sorted(counts))


def read(text: str) -> Counter[str]:
    """The counts in what pytest printed.

    >>> read("hard knocks: 1,240 byte flips; 20 kills\\n5 passed\\nhard knocks: 2 kills")["kills"]
    22
    """
    counts: Counter[str] = Counter()
    for printed in text.splitlines():
        for part in printed.removeprefix(BEGIN).split("; ") if printed.startswith(BEGIN) else ():
            number, _, name = part.partition(" ")
            counts[name] += int(number.replace(",", ""))
    return counts


def write(quick: Counter[str], hard: Counter[str], page: Path = PAGE) -> None:
    """Replace the table of counts in the page."""
    rows = [
        f"| {name} | {_number(quick[name])} | {_number(hard[name])} |" for name in sorted(quick.keys() | hard.keys())
    ]
    table = "\n".join(["| knock | `make test` | `make test-hard` |", "| --- | --- | --- |", *rows])
    before, _, rest = page.read_text(encoding="utf-8").partition(TABLE[0])
    after = rest.partition(TABLE[1])[2]
    page.write_text(f"{before}{TABLE[0]}\n\n{table}\n\n{TABLE[1]}{after}", encoding="utf-8")


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


if __name__ == "__main__":
    quick, hard = (read(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:3])
    write(quick, hard)
