"""The sentences that read the tables of docs/heads.md out."""

import pandas as pd
import pytest

from analyses.tools.heads_page import born, largest_paths, verdict


@pytest.mark.parametrize(
    ("role", "value", "low", "high", "said"),
    [
        ("previous-token", 1.2, 1.0, 1.4, "agrees"),
        ("previous-token", 1.2, 1.0, 1.7, "agrees on average"),
        ("previous-token", 1.6, 1.4, 1.7, "does not agree"),
        ("induction", 3.0, 2.5, 3.5, "agrees"),
        ("induction", 2.2, 1.8, 3.0, "agrees on average"),
        ("induction", 1.8, 1.5, 2.5, "does not agree"),
        ("induction", float("nan"), 1.5, 2.5, "unknown: no effect"),
    ],
)
def test_a_mean_on_the_papers_side_agrees_only_on_average_unless_its_interval_is_there_too(
    role, value, low, high, said
):
    assert verdict(role, {"value": value, "value_low": low, "value_high": high}) == said


def test_the_strongest_early_head_of_the_first_run_is_described_by_its_paths():
    rows = [
        ("a", "L1H1", "total", "", 1.0),
        ("a", "L1H1", "indirect", "k", 1.0),
        ("a", "L1H2", "total", "", 3.0),
        ("a", "L1H2", "direct", "", -0.01),
        ("a", "L1H2", "indirect", "k", 1.5),
        ("a", "L1H2", "indirect", "k", 1.2),
        ("a", "L1H2", "indirect", "v", 0.3),
        ("a", "L2H1", "total", "", 9.0),
        ("b", "L1H1", "total", "", 9.0),
    ]
    text = largest_paths(pd.DataFrame(rows, columns=["run", "source", "path", "input", "effect"]))
    assert "L1H2 has the largest effect, 3.0 logits" in text
    assert "2.7 through keys, 0.0 through queries and 0.3 through values" in text
    assert text.endswith("The direct effect is 0.0.")


def test_births_are_told_of_independent_runs():
    rows = [("independent", "induction", "born", 128.0), ("same data", "induction", "born", 7.0)]
    table = pd.DataFrame(rows, columns=["relation", "role", "measure", "value"])
    assert born(table) == "On average over independent runs, the leading induction head has its role from step 128 on."
    assert born(table.iloc[1:]) == ""
