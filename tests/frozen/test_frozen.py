"""The numbers on the shipped runs are those frozen; and the comparison sees what moves."""

import pandas as pd
import pytest

from tests.frozen.compare import compare, differences, head_name, sorted_out, summary
from tests.frozen.explained import EXPLAINED, Moved, reasons

COLUMNS = ["call", "run", "step", "key", "column", "value", "text"]


def one_row(key: str, value: float, text: str = "", run: str = "four-heads") -> pd.DataFrame:
    return pd.DataFrame([("probes.weights", run, 0, key, "value", value, text)], columns=COLUMNS)


@pytest.mark.parametrize(
    ("frozen", "present"),
    [
        ("probe=W_K1_first64|head=2", "probe=W_K1_first64|head=L1H3"),
        ("probe=W_O2_margin|head=0", "probe=W_O2_margin|head=L2H1"),
        ("probe=induction_mass2|head=3", "probe=induction_mass2|head=L2H4"),
        ("probe=W_K2|head=0>1", "probe=W_K2|head=L1H1>L2H2"),
        ("layer=1|head=0", "layer=1|head=L1H1"),
        ("probe=loss|head=", "probe=loss|head="),
        ("probe=W_K2|head=L1H1>L2H2", "probe=W_K2|head=L1H1>L2H2"),
    ],
)
def test_heads_counted_from_0_are_named_by_layer_and_head(frozen, present):
    assert head_name(frozen) == present


def test_a_number_within_the_tolerance_under_a_new_name_has_not_moved():
    frozen, present = one_row("probe=W_K1|head=2", 1.0), one_row("probe=W_K1|head=L1H3", 1.000009)
    assert differences(frozen, present).empty


def test_the_single_head_of_a_layer_has_not_moved_when_it_gets_a_name():
    frozen = one_row("probe=W_K1|head=", 0.5, run="induction-alone")
    assert differences(frozen, one_row("probe=W_K1|head=L1H1", 0.5, run="induction-alone")).empty


@pytest.mark.parametrize(
    ("present", "what"),
    [
        (one_row("probe=W_K1|head=L1H3", 1.0001), ["moved"]),
        (one_row("probe=W_K1|head=L1H3", float("nan")), ["moved"]),
        (one_row("probe=W_K1|head=L1H3", 1.0, "a word"), ["moved"]),
        (one_row("probe=W_K1|head=L1H2", 1.0), ["missing", "new"]),
    ],
)
def test_a_value_a_word_and_a_name_that_moved_are_listed(present, what):
    moved = differences(one_row("probe=W_K1|head=2", 1.0), present)
    assert sorted(moved["what"]) == what
    assert summary(moved)["count"].sum() == len(what)
    assert sorted_out(moved)[2]["what"].tolist() == [name for name in what if name != "new"]


def test_a_difference_is_explained_by_the_first_entry_that_matches_all_of_it():
    moved = differences(one_row("probe=W_K1|head=2", 1.0), one_row("probe=W_K1|head=2", 2.0))
    assert moved["why"].tolist() == [""]
    everything, other = Moved("all of it", r"probes\..*"), Moved("another", r"probes\..*", key="probe=W_K2.*")
    narrow = Moved("this one", r"probes\.weights", run="four-heads", key=r"probe=W_K1\|.*", column="value")
    for entries, why in (
        ([], ""),
        ([other], ""),
        ([narrow, everything], "this one"),
        ([other, everything], "all of it"),
    ):
        assert reasons(moved, entries).tolist() == [why]


def test_the_weights_of_a_run_give_the_frozen_probes():
    moved, failed, compared = compare(["probes.weights", "probes.births"], ["induction-alone"])
    assert compared > 3000
    assert failed == {}
    _, _, unknown = sorted_out(moved)
    assert unknown.empty, summary(unknown).to_string()


@pytest.mark.hard
def test_every_call_on_every_run_gives_the_frozen_numbers():
    moved, failed, compared = compare()
    assert compared > 50_000
    assert failed == {}
    known, _, unknown = sorted_out(moved)
    assert unknown.empty, summary(unknown).to_string()
    assert set(known["why"]) == {entry.why for entry in EXPLAINED}  # an entry that explains nothing is out of date
