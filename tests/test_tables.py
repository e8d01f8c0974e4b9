import pandas as pd
import pytest

from induction_memory.terminal import markdown, number, show, terminal

WIDE = pd.DataFrame(
    {
        "step": [0, 600],
        "component": ["none", "L1H1"],
        "in_context_accuracy": [0.94488, 0.23325],
        "in_context_accuracy_se": [0.00864, 0.06400],
        **{f"another_number_{i}": [0.123456 * i, 1.5] for i in range(1, 7)},
    }
)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (0.94488, 0.00864, "0.9449 ± 0.0086"),
        (0.23325, 0.064, "0.233 ± 0.064"),
        (4.363, 0.872, "4.36 ± 0.87"),
        (1.0, 3e-8, "1.0000"),
        (-3e-9, 3e-8, "0.0000"),
        (0.5, float("nan"), "0.5"),
        (float("inf"), 1.0, "inf"),
    ],
)
def test_a_value_has_the_digits_that_its_error_allows(value, error, shown):
    assert number(value, error) == shown


def test_an_error_stands_in_the_cell_of_its_value():
    lines = terminal(WIDE, ["component", "in_context_accuracy"]).splitlines()
    assert [line.split() for line in lines] == [
        ["in_context_"],
        ["component", "accuracy"],
        ["none", "0.9449", "±", "0.0086"],
        ["L1H1", "0.233", "±", "0.064"],
    ]


@pytest.mark.parametrize("width", [80, 60, 40])
def test_every_line_fits_and_every_number_is_shown(width):
    text = terminal(WIDE, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("L1H1") == len(text.split("\n\n"))
    for shown in ("0.233 ± 0.064", "0.12", "0.25", "0.37", "0.49", "0.62", "0.74"):
        assert shown in text


@pytest.mark.parametrize("width", [24, 36, 48])
def test_a_narrow_terminal_drops_no_column_and_cuts_no_cell(width):
    rows = {"component": ["none", "embed->L1H1.q"], "kind": ["none", "mean-position"]}
    table = pd.DataFrame(rows | {"in_context_accuracy": [0.9449, 0.233], "in_context_accuracy_se": [0.0086, 0.064]})
    text = terminal(table, width=width)
    assert all(shown in text for shown in ("0.9449 ± 0.0086", " 0.233 ± 0.064"))
    assert "…" not in text


def test_a_name_wider_than_its_numbers_is_broken_after_an_underscore():
    text = terminal(pd.DataFrame({"W_K1_first64_margin": [0.5, 0.25]}))
    assert [line.strip() for line in text.splitlines()] == ["W_K1_", "first64_", "margin", "0.500", "0.250"]
    text = terminal(pd.DataFrame({"norm_W_K1": [1, 2]}))
    assert [line.strip() for line in text.splitlines()] == ["norm_", "W_K1", "1", "2"]


def test_long_text_is_wrapped_and_loses_no_word():
    words = "steps to learn in context over steps to learn globally, five random triggers, twice over and over again"
    table = pd.DataFrame({"claim": ["global-first"], "measure": [words], "value": [2.62], "verdict": ["does not hold"]})
    text = terminal(table, width=60)
    assert max(map(len, text.splitlines())) <= 60
    for word in words.split():
        assert word in text


def test_the_column_of_long_text_has_most_of_the_room():
    rows = {
        "claim": ["prefers-the-unlikely"] * 2,
        "measure": ["the retrieved token is predicted, rank 3 or more in pi_b, at repeated tokens"] * 2,
        "value": [0.162, 0.917],
        "value_se": [0.014, 0.111],
        "threshold": ["at least 0.5"] * 2,
    }
    lines = terminal(pd.DataFrame(rows), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split("  ")[-1] == "at least 0.5"  # short text is not wrapped
    assert lines[1].split()[0] == "prefers-the-unlikely"
    assert len(lines) == 1 + 2 * 3


def test_many_columns_of_text_are_shown_in_blocks_with_the_columns_that_name_the_rows():
    votes = {f"vote_{i}": ["previous-token", "none"] for i in range(8)}
    table = pd.DataFrame({"run": ["four-heads"] * 2, "head": ["L1H1", "L1H2"], "share": [0.9, 0.1], **votes})
    blocks = terminal(table, width=80).split("\n\n")
    assert len(blocks) > 1
    for block in blocks:
        assert max(map(len, block.splitlines())) <= 80
        assert block.count("L1H1") == 1
    assert [sum(block.splitlines()[-1].count("none") for block in blocks)] == [8]


def test_rows_of_a_group_stand_below_its_heading():
    rows = {
        "verdict": ["does not hold", "holds", "holds"],
        "claim": ["two-layers", "two-layers", "one-layer"],
        "measure": ["accuracy of two layers, random triggers", "accuracy of two layers", "accuracy of one layer"],
        "value": [0.9, 0.99, 0.5],
    }
    text = terminal(pd.DataFrame(rows), width=40, groups=("verdict", "claim"))
    assert text.splitlines() == [
        "  measure                          value",
        "does not hold, two-layers",
        "  accuracy of two layers, random   0.900",
        "  triggers",
        "holds, two-layers",
        "  accuracy of two layers           0.990",
        "holds, one-layer",
        "  accuracy of one layer            0.500",
    ]


def test_numbers_of_a_column_have_the_same_places_unless_they_differ_much():
    same = terminal(pd.DataFrame({"x": [0.6, float("nan"), 0.652]})).splitlines()
    assert [line.strip() for line in same] == ["x", "0.600", "", "0.652"]
    apart = terminal(pd.DataFrame({"x": [1e-7, 0.652]})).splitlines()
    assert [line.strip() for line in apart] == ["x", "1e-07", "0.652"]


def test_truth_reads_yes_and_no_and_whole_numbers_stay_numbers():
    table = pd.DataFrame({"circuit": [True, False], "n": [1, 0]})
    assert [line.split() for line in terminal(table).splitlines()[1:]] == [["yes", "1"], ["no", "0"]]


def test_csv_and_json_hold_all_columns_and_digits(capsys):
    show(WIDE, "csv", ["component"])
    assert capsys.readouterr().out == WIDE.to_csv(index=False)
    show(WIDE, "json", ["component"])
    assert '"in_context_accuracy":0.94488' in capsys.readouterr().out


def test_markdown_escapes_bars_and_leaves_nan_empty():
    table = pd.DataFrame({"measure": ["KL(p || q)"], "value": [float("nan")], "n": [3]})
    assert markdown(table) == "| measure | value | n |\n| --- | --- | --- |\n| KL(p \\|\\| q) |  | 3 |"
