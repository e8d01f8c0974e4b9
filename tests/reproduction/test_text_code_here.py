"""The table of docs/text-code-here.md has the numbers of the shipped records."""

from pathlib import Path

import pytest

from induction_memory.paper import records
from induction_memory.trajectory.search import SHIPPED

PAGE = Path(__file__).parents[2] / "docs" / "text-code-here.md"
RUNS = {
    "code, nothing frozen": "figure-3",
    "text, nothing frozen": "figure-3-text",
    "text, `W_O2` frozen until 300": "figure-3-freeze-output-text",
    "text, both `W_K` frozen until 300": "figure-3-freeze-keys-text",
    "text, `W_K1` frozen until 300": "figure-3-freeze-first-key-text",
    "text, `W_K2` frozen until 300": "figure-3-freeze-second-key-text",
}


@pytest.mark.parametrize("label", RUNS)
def test_a_row_has_the_numbers_of_its_records(label):
    (row,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {label} |")]
    runs = records.read_all(SHIPPED / records.FOLDER).of(RUNS[label])
    births = [[run.reaches(name, 0.5) for run in runs] for name in ("W_O2", "W_K1_first64", "W_K2")]
    cells = [", ".join(f"{step:g}" for step in steps) for steps in births]
    cells.append(", ".join(f"{run.accuracy():.3f}" for run in runs))
    assert row == f"| {' | '.join([label, *cells])} |"
