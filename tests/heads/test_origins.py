"""Weights or data: scores on shares made by hand."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest

from induction_memory.heads.across_runs import agreement, answer, origins

P = "previous-token"
ONE_LEADS = [0.9, 0.1, 0.0, 0.0]


def carriers(**shares: list[float]) -> pd.DataFrame:
    rows = [(run, P, 1, f"L1H{h + 1}", share) for run, own in shares.items() for h, share in enumerate(own)]
    return pd.DataFrame(rows, columns=["run", "role", "layer", "head", "share"])


def facts(**seeds: tuple[int, int]) -> pd.DataFrame:
    return pd.DataFrame([(run, *own) for run, own in seeds.items()], columns=["run", "init_seed", "data_seed"])


def row(table: pd.DataFrame, measure: str, relation: str) -> dict:
    found = table[(table["measure"] == measure) & (table["relation"] == relation)]
    assert len(found) == 1
    return found.to_dict("records")[0]


FAMILY = {"a": (0, 0), "b": (1, 1), "c": (2, 2), "w1": (0, 10), "w2": (0, 11), "d1": (20, 0), "d2": (21, 0)}


def test_agreement_chance_and_the_most_possible_are_those_of_all_orders():
    a, b = np.array([0.7, 0.2, 0.1, 0.0]), np.array([0.1, 0.5, 0.3, 0.1])
    orders = [1 - np.abs(a - b[list(order)]).sum() / 2 for order in permutations(range(4))]
    assert agreement(a, b) == pytest.approx((orders[0], np.mean(orders), np.max(orders)))


def test_weights_that_choose_the_head_score_one_and_data_score_by_chance():
    moved = {"b": [0, 0.9, 0.1, 0], "c": [0, 0, 0.1, 0.9], "d1": [0.0, 0.1, 0.9, 0.0], "d2": [0.1, 0, 0, 0.9]}
    shares = {"a": ONE_LEADS, "b": moved["b"], "c": moved["c"], "w1": ONE_LEADS, "w2": ONE_LEADS}
    table = origins(facts(**FAMILY), carriers(**shares, d1=moved["d1"], d2=moved["d2"]))
    same = row(table, "which head", "same initialisation")
    assert (same["value"], same["value_low"], same["value_high"], same["pairs"]) == (1, 1, 1, 3)
    # by chance: both other runs put 0.9 and 0.1 in the same places
    assert same["p"] == pytest.approx(1 / 12**2)
    assert answer(same) == "the initial weights decide"
    other = row(table, "which head", "same data")
    assert other["value"] < 0.1
    assert other["p"] > 0.5


def test_data_that_choose_the_head_are_seen_in_runs_with_the_same_weights():
    heads = {"w1": [0, 0.9, 0.1, 0], "w2": [0, 0, 0.9, 0.1]}
    rest = dict.fromkeys(("b", "c", "d1", "d2"), ONE_LEADS)
    table = origins(facts(**FAMILY), carriers(a=ONE_LEADS, **rest, **heads))
    same = row(table, "which head", "same initialisation")
    assert same["value_high"] < 0.5
    assert answer(same) == "the data decide"
    assert answer({"value_low": 0.1, "value_high": 0.8}) == "undecided"


def test_explained_is_the_variance_that_disappears():
    leads = {"a": 0.9, "b": 0.6, "c": 0.4, "w1": 0.9, "w2": 0.9, "d1": 0.6, "d2": 0.4}
    shares = {run: [x, (1 - x) / 3, (1 - x) / 3, (1 - x) / 3] for run, x in leads.items()}
    table = origins(facts(**FAMILY), carriers(**shares))
    assert row(table, "largest share", "same initialisation")["value"] == 1
    assert row(table, "largest share", "same data")["value"] == pytest.approx(0)
    assert set(table.loc[table["relation"] == "independent", "measure"]) == {"which head"}


def test_a_role_in_different_layers_is_left_out():
    table = carriers(a=ONE_LEADS, b=ONE_LEADS)
    table.loc[table["run"] == "b", "head"] = [f"L2H{h}" for h in range(1, 5)]
    assert origins(facts(a=(0, 0), b=(1, 1)), table).empty


def test_runs_without_siblings_are_compared_among_themselves():
    table = origins(facts(a=(0, 0), b=(1, 1)), carriers(a=ONE_LEADS, b=ONE_LEADS[::-1]))
    assert table["relation"].tolist() == ["independent"]
