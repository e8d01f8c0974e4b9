"""The planted circuit is described as it was planted, and permuting the heads permutes the description."""

import numpy as np
import pytest
import torch

from induction_memory import BigramTask, sample
from induction_memory.errors import InputError
from induction_memory.heads.identification import identify
from induction_memory.heads.roles import listed, rows_of
from induction_memory.heads.shapley import all_coalitions, shapley
from induction_memory.model.constructed import permuted, plant
from induction_memory.task import Corpus, step_rng

TEXT = "".join(np.random.default_rng(0).choice(list("abcdefghijkl"), 4000))
TASK = BigramTask(corpus=Corpus.from_text(TEXT, "letters"), length=24, k=3)
ORDERS = {1: [3, 0, 2, 1], 2: [1, 3, 0, 2]}


@pytest.fixture(scope="module")
def planted():
    return plant(TASK, d_model=160)


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 16, step_rng(2, 0))


@pytest.fixture(scope="module")
def found(planted, batch):
    return identify(planted.model, batch=batch)


def column(table, key, value):
    return dict(zip(table[key], table[value], strict=True))


def test_the_planted_model_does_the_task(planted, batch):
    with torch.no_grad():
        right = planted.model(batch.tokens).argmax(-1) == batch.targets
    assert right[batch.in_context].double().mean() > 0.95


def test_every_head_is_given_its_role(planted, found):
    assert column(found.roles, "head", "role") == dict(planted.roles)
    assert (found.roles["agreement"] > 0.8).all()


def test_shares_of_the_right_outputs_logit_are_those_planted(planted, found):
    shares = column(rows_of(found.shares, game="layer", layer=2), "head", "share")
    assert shares == pytest.approx(dict(planted.shares), abs=0.02)
    assert column(found.roles, "head", "share")["L2H1"] == shares["L2H1"]


def test_the_first_layer_shares_as_the_circuits_formula_says(found):
    """In layer 1, the right output needs the previous-token head AND (one OR the other current-token head).

    Without them the induction heads still guess among the tokens before, so the formula holds to a few hundredths.
    """
    here = all_coalitions(4).double()
    ideal = shapley((here[:, 0] * (1 - (1 - here[:, 1]) * (1 - here[:, 2])))[:, None])[:, 0].numpy()
    np.testing.assert_allclose(ideal, [2 / 3, 1 / 6, 1 / 6, 0], atol=1e-12)
    got = rows_of(found.shares, game="layer", layer=1)["share"].to_numpy()
    np.testing.assert_allclose(got, ideal, atol=0.04)
    keys = rows_of(found.shares, game="k", layer=1)["share"].to_numpy()
    queries = rows_of(found.shares, game="q", layer=1)["share"].to_numpy()
    np.testing.assert_allclose(keys, [1, 0, 0, 0], atol=0.02)
    np.testing.assert_allclose(queries, [0, 0.5, 0.5, 0], atol=0.02)


def test_the_distractor_is_exposed(planted, found):
    assert [h for h, odd in column(found.roles, "head", "distractor").items() if odd] == [planted.distractor]
    row = rows_of(found.roles, head=planted.distractor)
    assert row["attention"].tolist() == ["induction"]
    assert row["disagreement"].tolist() == ["attention: induction"]
    attention = rows_of(found.votes, head=planted.distractor, vote="attention", role="induction")["score"].tolist()[0]
    assert attention > 0.8


def test_redundancy_is_named_and_nothing_else_is_called_redundant(planted, found):
    redundant = found.pairs.loc[found.pairs["relation"].str.endswith("redundant")]
    assert list(zip(redundant["a"], redundant["b"], redundant["relation"], strict=True)) == [
        (*planted.redundant, "fully redundant")
    ]
    one, other = planted.redundant
    assert column(found.roles, "head", "redundant_with")[one] == other
    assert column(rows_of(found.pairs, a="L2H1"), "b", "relation")["L2H2"] == "independent"


def test_cut_singly_the_pair_does_nothing_and_cut_jointly_everything(planted, found):
    pair = rows_of(found.pairs, a=planted.redundant[0], b=planted.redundant[1])
    whole = rows_of(found.totals, game="all")["total"].tolist()[0]
    assert abs(pair["single_a"].tolist()[0]) < 0.02 * whole
    assert pair["joint"].tolist()[0] > 0.7 * whole
    takes_over = rows_of(found.hydra, cut=planted.redundant[0], other=planted.redundant[1])["takeover_effect"]
    assert takes_over.tolist()[0] > 0.7
    others = rows_of(found.hydra, cut="L2H1", other=["L2H2", "L2H3", "L2H4"])["takeover_effect"].to_numpy()
    np.testing.assert_allclose(others, 0, atol=0.02)


def test_effective_numbers_of_heads(found):
    effective = {(g, layer): e for g, layer, e in found.totals[["game", "layer", "effective"]].itertuples(index=False)}
    assert effective["k", 1] == pytest.approx(1, abs=0.02)
    assert effective["q", 1] == pytest.approx(2, abs=0.02)
    assert effective["out", 2] == pytest.approx(1 / (0.7**2 + 0.3**2), abs=0.02)


def test_mediation_runs_through_keys_and_queries_in_the_planted_shares(planted, found):
    table = found.mediation
    by_keys = rows_of(table, source="L1H1", input="k")
    assert column(by_keys, "target", "part") == pytest.approx(
        {"L2H1": 0.7, "L2H2": 0.3, "L2H3": 0.0, "L2H4": 0.0}, abs=0.02
    )
    others = rows_of(table, source="L1H1", path=["direct", "rest"])["part"].to_numpy()
    np.testing.assert_allclose(others, 0, atol=0.02)
    by_queries = rows_of(table, source="+".join(planted.redundant), input="q")
    assert column(by_queries, "target", "part")["L2H1"] == pytest.approx(0.7, abs=0.02)
    assert rows_of(table, source="L2H1", path="direct")["part"].tolist()[0] == pytest.approx(1, abs=1e-4)
    assert (rows_of(table, path="total", source=["L1H1", "L2H1", "L2H2"])["effect_se"] > 0).all()


def test_shapley_values_sum_to_the_total_effect(found):
    for game, layer in {(g, n) for g, n in zip(found.totals["game"], found.totals["layer"], strict=True)}:
        values = rows_of(found.shares, game=game, layer=layer)["shapley"].sum()
        total = rows_of(found.totals, game=game, layer=layer)["total"].tolist()[0]
        assert values == pytest.approx(total, abs=1e-6)


def test_permuting_the_heads_permutes_the_answer_and_nothing_else(planted, batch, found):
    other = identify(permuted(planted.model, ORDERS), batch=batch)
    new_name = {f"L{n}H{old + 1}": f"L{n}H{new + 1}" for n, order in ORDERS.items() for new, old in enumerate(order)}

    def rename(name):
        return "+".join(sorted(new_name.get(part, part) for part in name.split("+")))

    keys = {
        "roles": ["head"],
        "votes": ["head", "vote", "role"],
        "shares": ["game", "layer", "head"],
        "totals": ["game", "layer"],
        "hydra": ["cut", "other"],
        "mediation": ["source", "path", "target", "input"],
    }
    for table, names in keys.items():
        mine, theirs = getattr(found, table).copy(), getattr(other, table)
        for name in {"head", "cut", "other", "source", "target"} & set(names):
            mine[name] = [rename(value) for value in mine[name]]
        if table == "roles":
            mine["redundant_with"] = [rename(value) for value in mine["redundant_with"]]
        mine, theirs = (t.sort_values(names).reset_index(drop=True) for t in (mine, theirs))
        for name in mine.columns:
            if mine[name].dtype.kind == "f":
                np.testing.assert_allclose(mine[name], theirs[name], atol=1e-3, err_msg=f"{table}.{name}")
            else:
                assert mine[name].tolist() == theirs[name].tolist(), f"{table}.{name}"


def test_random_embeddings_interfere_and_the_circuit_is_still_found():
    planted = plant(TASK, d_model=224, n_heads=3, embeddings="random", seed=1)
    found = identify(planted.model, batch=sample(TASK, 12, step_rng(3, 0)))
    assert column(found.roles, "head", "role") == dict(planted.roles)
    shares = column(rows_of(found.shares, game="layer", layer=2), "head", "share")
    assert shares == pytest.approx(dict(planted.shares), abs=0.02)
    assert column(found.roles, "head", "redundant_with")["L1H2"] == "L1H3"


def test_other_shares_are_found_as_planted(batch):
    planted = plant(TASK, d_model=160, n_heads=3, shares=(0.45, 0.55))
    found = identify(planted.model, batch=batch)
    shares = column(rows_of(found.shares, game="layer", layer=2), "head", "share")
    assert shares == pytest.approx(dict(planted.shares), abs=0.02)
    assert listed(found.roles, "run") == ["model 1"]


def test_orthonormal_embeddings_need_room():
    with pytest.raises(InputError, match=r"d_model: expected at least 156"):
        plant(TASK, d_model=128)
