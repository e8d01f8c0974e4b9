import numpy as np
import pandas as pd
import pytest
import torch

from induction_memory import BigramTask, load, sample
from induction_memory.heads.games import value_function
from induction_memory.heads.identification import identify
from induction_memory.heads.roles import ROLES, UNCLEAR, VOTES, choice, support, verdicts
from induction_memory.heads.sharing import relation
from induction_memory.heads.votes import attention_scores, chosen_tokens, weight_recalls
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import plant
from induction_memory.model.memories import embedding, matrix
from induction_memory.runner.weights import parameters
from induction_memory.source.sources import batch_of_tokens
from induction_memory.task import Corpus, step_rng


def tables(weights, attention, causes, redundant=(), error=0.001):
    """Votes, shares and pairs of one head of layer 1 with these scores for (previous, current, induction)."""
    scores = dict(zip(VOTES, (weights, attention, causes), strict=True))
    votes = [("L1H1", v, r, scores[v][i]) for v in VOTES for i, r in enumerate(ROLES)]
    games = {"layer": sum(causes), "k": causes[0], "q": causes[1], "out": causes[2]}
    shares = [(game, 1, "L1H1", effect, effect, error) for game, effect in games.items()]
    pairs = [("L1H1", other, "fully redundant") for other in redundant]
    return (
        pd.DataFrame(votes, columns=["head", "vote", "role", "score"]),
        pd.DataFrame(shares, columns=["game", "layer", "head", "share", "effect", "effect_se"]),
        pd.DataFrame(pairs, columns=["a", "b", "relation"]),
    )


def verdict(*scores, **more):
    return verdicts(*tables(*scores, **more)).iloc[0]


def test_three_votes_that_agree_make_a_sure_verdict():
    row = verdict([0.9, 0, 0], [0.8, 0, 0], [0.6, 0, 0])
    assert (row["role"], row["agreement"], row["disagreement"]) == ("previous-token", 1.0, "")


def test_a_head_without_effect_has_no_role_and_is_a_distractor_if_it_looks_like_one():
    looks = verdict([0, 0, 0.9], [0, 0, 0.9], [0.001, 0, 0.001])
    assert (looks["role"], looks["distractor"]) == ("none", True)
    assert looks["disagreement"] == "weights: induction; attention: induction"
    idle = verdict([0, 0, 0.01], [0.02, 0, 0.01], [0.001, 0, 0.001])
    assert (idle["role"], idle["distractor"], idle["disagreement"]) == ("none", False, "")


def test_a_head_with_an_effect_that_looks_like_nothing_is_other():
    row = verdict([0, 0, 0], [0, 0.01, 0], [0, 0, 0.4])
    assert (row["role"], row["disagreement"]) == ("other", "weights: none; attention: none; causes: induction")


def test_votes_that_lean_towards_what_a_head_does_name_it_before_they_reach_their_thresholds():
    row = verdict([0.2, 0.0, 0.0], [0.15, 0.0, 0.0], [0.9, 0.0, 0.0])
    assert (row["role"], row["disagreement"]) == ("previous-token", "weights: none; attention: none")
    assert row["agreement"] == pytest.approx((0.4 + 0.3 + 1) / 3)
    assert verdict([0.1, 0.0, 0.0], [0.1, 0.0, 0.0], [0.9, 0.0, 0.0])["role"] == "other"


def test_a_dissenting_vote_is_named_and_lowers_the_agreement():
    row = verdict([0, 0, 0.9], [0, 0, 0.9], [0.3, 0, 0])
    assert row["role"] == "induction"
    assert row["agreement"] == pytest.approx(2 / 3)
    assert row["disagreement"] == "causes: previous-token"


def test_a_vote_without_scores_abstains():
    row = verdict([np.nan] * 3, [0.9, 0, 0], [0.5, 0, 0])
    assert (row["role"], row["weights"], row["disagreement"]) == ("previous-token", "unknown", "")
    assert row["agreement"] == pytest.approx(2 / 3)


def test_unknown_effects_are_not_read_as_none():
    row = verdict([0, 0, 0.9], [0, 0, 0.9], [np.nan] * 3)
    assert (row["role"], row["causes"], row["distractor"]) == ("induction", "unknown", False)
    assert row["agreement"] == pytest.approx(2 / 3)
    nothing = verdict([0, 0, 0], [0, 0, 0.01], [np.nan] * 3)
    assert (nothing["role"], nothing["distractor"]) == ("unknown", False)
    assert nothing["agreement"] < 0.67


def test_a_large_effect_with_a_large_error_is_unclear_and_not_none():
    row = verdict([0.9, 0, 0], [0.9, 0, 0], [0.7, 0, 0], error=0.28)
    assert (row["role"], row["distractor"], row["disagreement"]) == ("previous-token", False, UNCLEAR)
    assert row["agreement"] == pytest.approx(2 / 3)
    only_cause = verdict([0, 0, 0], [0, 0, 0], [0.7, 0, 0], error=0.28)
    assert (only_cause["role"], only_cause["disagreement"].endswith(UNCLEAR)) == ("unknown", True)
    small = verdict([0.9, 0, 0], [0.9, 0, 0], [0.02, 0, 0], error=0.28)
    assert (small["role"], small["distractor"]) == ("none", True)


def test_an_unknown_score_for_one_role_leaves_it_possible():
    np.testing.assert_allclose(support(np.array([np.nan, 0, 0]), 0.25), [0.5, 0, 0, 0.5])
    np.testing.assert_allclose(support(np.array([np.nan, 0, 0.25]), 0.25), [0.25, 0, 0.5, 0.25])
    assert np.isnan(support(np.full(3, np.nan), 0.25)).all()


def test_two_sequences_leave_the_effects_of_a_trained_model_unknown():
    found = identify(load("four-heads"), sequences=2)
    causes = found.votes.loc[found.votes["vote"] == "causes", "score"]
    assert causes.isna().all()
    assert set(found.roles["causes"]) == {"unknown"}
    assert "none" not in set(found.roles["role"])
    assert (found.roles["agreement"] <= 2 / 3 + 1e-9).all()
    assert set(found.pairs["relation"]) == {"unknown"}


def test_heads_that_were_measured_to_do_nothing_have_no_role():
    model = build(ModelConfig.full(d_model=16, n_ctx=16, n_heads=2), seed=0)
    found = identify(model, sequences=16)
    assert set(found.roles["causes"]) == {"none"}
    assert set(found.pairs["relation"]) == {"idle"}


def test_those_who_can_stand_in_are_named():
    assert verdict([0.9, 0, 0], [0.8, 0, 0], [0.6, 0, 0], redundant=["L1H2", "L1H4"])["redundant_with"] == "L1H2, L1H4"


def test_support_is_half_at_the_threshold_and_whole_at_twice():
    np.testing.assert_allclose(support(np.array([0.25, 0, 0]), 0.25), [0.5, 0, 0, 0.5])
    np.testing.assert_allclose(support(np.array([0.5, 0, 0]), 0.25), [1, 0, 0, 0])
    np.testing.assert_allclose(support(np.array([-1.0, 0, 0]), 0.25), [0, 0, 0, 1])
    assert choice(np.array([0.2, 0.1, 0.0]), 0.25) == "none"
    assert choice(np.array([0.2, 0.9, 0.3]), 0.25) == "current-token"


def test_relations_have_names():
    named = [relation(s) for s in (-1.0, -0.7, -0.2, 0.0, 0.5, np.nan)]
    assert named == [
        "fully redundant",
        "mostly redundant",
        "partly redundant",
        "independent",
        "synergistic",
        "independent",
    ]


def corrected(found, chance):
    return (np.mean(found) - chance) / (1 - chance)


def slow_recall(queries, W, keys):
    """Share of i for which queries_i^T W keys_j is largest, strictly, at j = i, corrected for chance."""
    found = []
    for i in range(len(queries)):
        scores = [float(queries[i] @ W @ keys[j]) for j in range(len(keys))]
        found.append(all(scores[i] > scores[j] for j in range(len(keys)) if j != i))
    return corrected(found, 1 / len(keys))


@pytest.mark.parametrize("early", [64, 4])
def test_weight_recalls_equal_loops_over_heads_tokens_and_positions(early, monkeypatch):
    monkeypatch.setattr("induction_memory.heads.votes.EARLY", early)
    config = ModelConfig.full(d_model=12, n_ctx=6, d_vocab=5, n_heads=2, layer_norm=True)
    model = build(config, seed=3)
    tokens, length = torch.tensor([0, 2, 3, 4]), 6
    key_query, value_output = weight_recalls(parameters(model), tokens, length)
    w_E, w_U, p = embedding(model, "w_E")[tokens], embedding(model, "w_U")[tokens], embedding(model, "p")
    W_K, Phi = ([matrix(model, f"{name}{layer}") for layer in (1, 2)] for name in ("W_K", "Phi_"))
    asked = range(1, min(length, early))
    chance = np.mean([1 / (t + 1) for t in asked])
    written = [w_E @ Phi[0][h].T for h in range(2)]
    match = np.zeros((3, 2, 2))
    for g in range(2):
        for a, queries in enumerate([w_E, *written]):
            for b, keys in enumerate(written):
                match[a, b, g] = slow_recall(queries, W_K[1][g], keys)
    for layer in range(2):
        for h in range(2):
            W = W_K[layer][h]
            previous, own = [], []
            for t in asked:
                scores = [float(p[t] @ W @ p[s]) for s in range(t + 1)]
                previous.append(np.argmax(scores) == t - 1)
                own.append(np.argmax(scores) == t)
            assert key_query[layer, h, 0] == pytest.approx(corrected(previous, chance))
            assert key_query[layer, h, 1] == pytest.approx(max(corrected(own, chance), slow_recall(w_E, W, w_E)))
            assert key_query[layer, h, 2] == pytest.approx(match[:, :, h].max() if layer else 0)
            copied = slow_recall(w_E, Phi[layer][h].T, w_U)  # the attended token chooses among the outputs
            assert value_output[layer, h, 2] == pytest.approx(copied)
            expected = (max(0, match[:, h].max()), max(0, match[1 + h].max())) if layer == 0 else (0, 0)
            assert value_output[layer, h, :2].tolist() == pytest.approx(list(expected))


@pytest.mark.parametrize("early", [64, 4])
def test_attention_scores_equal_a_loop_over_queries(early, monkeypatch):
    monkeypatch.setattr("induction_memory.heads.votes.EARLY", early)
    model = build(ModelConfig.full(d_model=12, n_ctx=10, d_vocab=4, n_heads=2), seed=1)
    batch = batch_of_tokens(torch.randint(4, (3, 11), generator=torch.Generator().manual_seed(0)))
    got = attention_scores(value_function(model, batch))
    _, cache = model.run_with_cache(batch.tokens)
    A = cache["blocks.1.attn.hook_pattern"].detach()[:, 1]
    sums, chances = {role: [] for role in ROLES}, {role: [] for role in ROLES}
    for b in range(3):
        for t in range(1, min(10, early)):
            sums["previous-token"].append(A[b, t, t - 1].item())
            sums["current-token"].append(A[b, t, t].item())
            chances["previous-token"].append(1 / (t + 1))
            chances["current-token"].append(1 / (t + 1))
        for t in range(10):
            if batch.in_context[b, t]:
                sought = [s for s in range(1, t + 1) if batch.tokens[b, s - 1] == batch.tokens[b, t]]
                sums["induction"].append(sum(A[b, t, s].item() for s in sought))
                chances["induction"].append(len(sought) / (t + 1))
    for r, role in enumerate(ROLES):
        expected = corrected(sums[role], np.mean(chances[role]))
        assert got[1, 1, r].item() == pytest.approx(expected, abs=1e-5)


def test_of_a_large_vocabulary_only_some_tokens_are_measured():
    assert len(chosen_tokens(torch.arange(10000).view(10, 1000))) == 256
    assert chosen_tokens(torch.tensor([[3, 1, 3]])).tolist() == [1, 3]


def test_an_untrained_model_has_no_roles_and_a_planted_one_has_all():
    text = "".join(np.random.default_rng(0).choice(list("abcdefgh"), 2000))
    task = BigramTask(corpus=Corpus.from_text(text, "letters"), length=16, k=2)
    batch = sample(task, 8, step_rng(0, 0))
    tokens = chosen_tokens(batch.tokens)
    planted = plant(task, d_model=112)
    key_query, value_output = weight_recalls(parameters(planted.model), tokens, 16)
    assert torch.minimum(key_query, value_output)[[0, 0, 1], [0, 1, 0], [0, 1, 2]].tolist() == [1, 1, 1]
    untrained = build(planted.model.model_config, seed=5)
    key_query, value_output = weight_recalls(parameters(untrained), tokens, 16)
    assert torch.minimum(key_query, value_output).max() < 0.25


def test_weights_that_have_diverged_cast_no_vote():
    run = load("induction-small")
    model = run.model(step=600)
    model.blocks[1].attn.W_O.data[0, 0, 0] = torch.nan
    roles = identify(model, batch=run.task.sample(4, step_rng(0, 0))).roles
    assert (roles[["weights", "causes"]] == "unknown").all().all()
    assert roles["attention"].tolist() == ["previous-token", "induction"]
