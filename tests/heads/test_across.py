"""Runs compared, on tables made by hand."""

import numpy as np
import pandas as pd
import pytest

from induction_memory.heads.across_runs import (
    chance_agreement,
    identifiability,
    interval,
    match,
    matches,
    mean_over_drawn,
    pair_matrix,
    relations,
    stability,
)
from induction_memory.heads.identification import Identification
from induction_memory.heads.roles import ROLES, VOTES, carriers, changes, decisions, role_births

P, C, D, N = *ROLES, "none"  # D for induction
HEADS = ("L1H1", "L1H2", "L2H1", "L2H2")


def cast(run, held, step=0):
    """The roles and votes of a run whose heads have these roles, all votes sure of them."""
    roles = pd.DataFrame({"run": run, "step": step, "layer": [1, 1, 2, 2], "head": HEADS, "role": held, "causes": held})
    rows = [(run, step, h, v, r, float(held[i] == r)) for i, h in enumerate(HEADS) for r in ROLES for v in VOTES]
    return roles, pd.DataFrame(rows, columns=["run", "step", "head", "vote", "role", "score"])


def work(run, held, step=0):
    """Shares and totals in which the heads of a role do its route's work equally."""
    route = {P: ("k", 1), C: ("q", 1), D: ("out", 2)}
    shares, totals = [], []
    for role, (game, layer) in route.items():
        mine = [float(held[i] == role) for i, h in enumerate(HEADS) if h.startswith(f"L{layer}")]
        n = sum(mine)
        for head, does in zip([h for h in HEADS if h.startswith(f"L{layer}")], mine, strict=True):
            share = does / n if n else np.nan
            shares.append((run, step, game, layer, head, share, share, 0.01, share))
        totals.append((run, step, game, layer, 1.0, n or np.nan))
    names = ["run", "step", "game", "layer", "head", "shapley", "share", "shapley_se", "effect"]
    return (
        pd.DataFrame(shares, columns=names),
        pd.DataFrame(totals, columns=["run", "step", "game", "layer", "effect", "effective"]),
    )


def family(**runs):
    parts = [(*cast(name, held), *work(name, held)) for name, held in runs.items()]
    roles, votes, shares, totals = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    facts = pd.DataFrame({"run": list(runs), "init_seed": range(len(runs)), "data_seed": range(100, 100 + len(runs))})
    return facts, roles, votes, shares, totals


def pick(table, column, **where):
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1
    return table[column].iloc[0]


def test_the_match_makes_the_sum_of_distances_least():
    a, b = np.array([[0.0], [1.0], [5.0]]), np.array([[5.0], [0.2], [0.9]])
    rows, columns, distance = match(a, b)
    assert list(zip(rows, columns, strict=True)) == [(0, 1), (1, 2), (2, 0)]
    np.testing.assert_allclose(distance, [0.2, 0.1, 0.0])


def test_heads_are_matched_by_role_wherever_they_sit():
    _, roles, votes, _, _ = family(one=[P, N, D, C], other=[D, C, N, P])
    table = matches(roles, votes)
    assert table["same_role"].all()
    assert pick(table, "head_b", head_a="L1H1") == "L2H2"
    assert not pick(table, "same_layer", head_a="L2H2")
    assert not table["same_head"].any()


def test_stability_counts_heads_agreement_and_places():
    facts, roles, votes, shares, totals = family(a=[P, N, D, D], b=[N, P, D, N], c=[P, N, N, D])
    table = stability(facts, roles, shares, totals, matches(roles, votes))
    value = {(r, m): v for r, m, v in table[["role", "measure", "value"]].itertuples(index=False)}
    assert value[P, "heads"] == 1
    assert value[D, "heads"] == pytest.approx(4 / 3)
    assert value[D, "effective"] == pytest.approx(4 / 3)
    assert value[D, "leader"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert value[C, "present"] == 0
    assert np.isnan(value[C, "agreement"])
    assert value[P, "agreement"] == 1
    assert value[D, "agreement"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert value[P, "same layer"] == 1
    assert value[P, "same head"] == pytest.approx(1 / 3)
    low, high = pick(table, "value_low", role=D, measure="heads"), pick(table, "value_high", role=D, measure="heads")
    assert 1 <= low < 4 / 3 < high <= 2
    assert (pick(table, "value_low", role=P, measure="heads"), pick(table, "value_high", role=P, measure="heads")) == (
        1,
        1,
    )


def test_one_run_tells_anothers_roles_by_index_only_if_they_sit_in_the_same_places():
    facts, roles, votes, *_ = family(a=[P, N, D, D], b=[P, N, D, D])
    same = identifiability(facts, roles, votes)
    assert same["score"].tolist() == pytest.approx([1, (0.75 - 0.375) / (1 - 0.375), 1, 1])
    facts, roles, votes, *_ = family(a=[P, N, D, D], b=[N, P, D, D])
    moved = identifiability(facts, roles, votes)
    assert pick(moved, "accuracy", predictor="index") == 0.5
    assert pick(moved, "chance", predictor="index") == pytest.approx(6 / 16)
    assert pick(moved, "accuracy", predictor="layer") == pytest.approx((0.5 + 1) / 2)
    assert pick(moved, "score", predictor="match") == 1


def test_looks_predict_causes_unless_a_distractor_is_among_them():
    facts, roles, votes, *_ = family(a=[P, N, D, D], b=[P, N, D, D])
    roles.loc[3, "causes"] = N  # the last head of run a looks like induction and does nothing
    table = identifiability(facts, roles, votes)
    assert pick(table, "accuracy", predictor="appearance") == 0.75
    assert pick(table, "accuracy", predictor="match") == 1


def test_chance_is_the_agreement_of_heads_drawn_at_random():
    assert chance_agreement(np.array([P, P, N]), np.array([P, N, N])) == pytest.approx((2 * 1 + 1 * 2) / 9)


def test_runs_that_share_initial_weights_or_data_are_not_independent():
    runs = pd.DataFrame({"run": list("abcde"), "init_seed": [0, 3, 0, 7, 3.5], "data_seed": [1, 4, 9, 1, 5]})
    assert relations(runs) == {
        "independent": [("a", "b"), ("a", "e"), ("b", "e")],
        "same initialisation": [("a", "c")],
        "same data": [("a", "d")],
    }
    models = pd.DataFrame({"run": ["x", "y"], "init_seed": [np.nan] * 2, "data_seed": [np.nan] * 2})
    assert relations(models) == {"independent": [("x", "y")]}
    assert relations(models[:1]) == {}


def test_bootstrap_intervals_cover_the_mean_and_leave_out_pairs_of_copies():
    values = np.arange(20.0)
    mean, low, high = interval(mean_over_drawn(values), 20)
    assert mean == 9.5
    assert low == pytest.approx(9.5 - 1.96 * values.std() / 20**0.5, abs=0.4)
    assert high == pytest.approx(9.5 + 1.96 * values.std() / 20**0.5, abs=0.4)
    names, matrix = pair_matrix({("a", "b"): 1.0, ("a", "c"): 0.0, ("b", "c"): 0.5})
    assert names == ["a", "b", "c"]
    statistic = mean_over_drawn(matrix)
    assert statistic(np.array([0, 1, 2])) == 0.5
    assert statistic(np.array([0, 0, 1])) == 1.0
    assert np.isnan(statistic(np.array([2, 2, 2])))


def test_carriers_are_read_in_the_layer_where_the_route_is_strongest():
    _, _, _, shares, totals = family(a=[P, P, D, N])
    table = carriers(shares, totals)
    assert dict(zip(table["head"], table["share"], strict=True)) == {"L1H1": 0.5, "L1H2": 0.5, "L2H1": 1, "L2H2": 0}
    assert pick(table, "effective", head="L1H1") == 2


def test_a_role_is_born_when_it_is_kept_to_the_end():
    careers = {0: [N, N, N, N], 10: [P, N, N, D], 20: [C, N, N, D], 30: [P, N, D, D]}
    roles = pd.concat([cast("a", held, step)[0] for step, held in careers.items()], ignore_index=True)
    born = role_births(roles)
    assert dict(zip(born["head"], born["born"], strict=True)) == {"L1H1": 30, "L2H1": 30, "L2H2": 10}
    table = changes(roles)
    assert table[table["head"] == "L1H1"][["step", "before", "after"]].to_numpy().tolist() == [
        [10, N, P],
        [20, P, C],
        [30, C, P],
    ]


def test_a_birth_is_unknown_if_only_one_step_was_examined():
    assert role_births(cast("a", [P, N, D, D], 400)[0])["born"].isna().all()


def test_sharing_is_decided_when_the_shares_stay_near_their_last_values():
    values = {0: (0.0, 0.0), 10: (0.5, 0.0), 20: (3.0, 1.0), 30: (6.0, 4.2), 40: (6.0, 4.0)}
    rows = [("a", t, "out", 2, f"L2H{h + 1}", x[h]) for t, x in values.items() for h in range(2)]
    table = decisions(pd.DataFrame(rows, columns=["run", "step", "game", "layer", "head", "shapley"]))
    assert pick(table, "emerged", role=D) == 30  # 5 of 10 are first passed with 10.2
    assert pick(table, "decided", role=D) == 30  # 0.75 / 0.25 at step 20 is 0.15 away from 0.6 / 0.4


def test_runs_of_different_configurations_are_compared_apart():
    held = {"a": (P, N, D, N), "b": (P, N, D, N), "c": (N, P, N, D), "d": (N, P, N, D)}
    facts, roles, votes, shares, totals = family(**held)
    facts = facts.assign(configuration=["task.k=1", "task.k=1", "task.k=5", "task.k=5"])
    none = pd.DataFrame({"run": []})
    found = Identification(facts, roles, votes, shares, totals, none, none, none)
    together = Identification(facts.drop(columns="configuration"), roles, votes, shares, totals, none, none, none)
    apart = found.stability
    assert set(apart["configuration"]) == {"task.k=1", "task.k=5"}
    where = {"relation": "independent", "role": P, "measure": "same head"}
    assert pick(apart, "value", configuration="task.k=1", **where) == 1
    assert pick(apart, "value", configuration="task.k=5", **where) == 1
    assert pick(together.stability, "value", **where) == pytest.approx(2 / 6)
    assert set(apart["runs"]) == {2}
    assert set(found.identifiability["configuration"]) == {"task.k=1", "task.k=5"}


def test_rounding_errors_do_not_decide_between_heads_that_are_alike():
    profiles = np.array([[0.9, 0.0], [0.2, 0.5], [0.2, 0.5]])
    noise = 1e-7 * np.array([[0, 0], [0, 1], [1, 0]])
    found = [match(profiles, profiles + sign * noise)[1].tolist() for sign in (-1, 0, 1)]
    assert found[0] == found[1] == found[2]
    assert found[0][0] == 0
