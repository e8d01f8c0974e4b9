"""Counts of what the tests of reliability did, printed at the end of a run of pytest.

A test takes the fixture `knocks` and says what it did to how much: `knocks["byte flips"] += 1`. The counts travel with
the test's report, so that they add up over the processes of pytest-xdist.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

PROPERTY = "knocks"


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
    return "hard knocks: " + ", ".join(f"{counts[name]:,} {name}" for name in sorted(counts))
