"""Predictions taken apart: terms add up to the model's own numbers, equal a loop over paths, and predict surgery."""

import itertools

import pytest
import torch
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import induction_memory as im
from induction_memory.errors import UnsupportedError
from induction_memory.interventions.memory_surgery import edited
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.probes.activations import Activations
from induction_memory.probes.why import Streams, explain
from induction_memory.source.sources import select
from induction_memory.task.sampler import sample, step_rng
from induction_memory.trajectory.search import SHIPPED
from tests.conftest import NEW_LENS
from tests.probe_sources import FIXED, RANDOM, TINY, constructed, untrained

SIZES = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_head": 8, "n_ctx": 24, "d_vocab": 11, "d_mlp": 64, "seed": 0}
GELU = {"act_fn": "gelu", "positional_embedding_type": "rotary", "n_key_value_heads": 2}
FOREIGN = {
    "rotary, grouped heads, LayerNorm, GELU": {**GELU, "normalization_type": "LN", "rotary_dim": 8},
    "partly rotary, RMSNorm, gated": {**GELU, "normalization_type": "RMS", "rotary_dim": 4, "gated_mlp": True},
    "folded LayerNorm, ReLU": {"act_fn": "relu", "normalization_type": "LNPre"},
    "parallel blocks": {"act_fn": "relu", "normalization_type": "LN", "parallel_attn_mlp": True},
    "three layers": {"act_fn": "gelu", "normalization_type": "RMSPre", "attn_only": True, "n_layers": 3},
}


def shaken(model):
    """The model with gains and biases that are not 1 and 0, and attention that is not uniform."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        noise = torch.randn(parameter.shape, generator=generator)
        if kind.startswith("b") or kind == "w":
            parameter.data = 0.3 * noise + (kind == "w")
        elif kind in ("W_Q", "W_K", "_W_K", "W_V", "_W_V"):
            parameter.data *= 3
    return model


@pytest.fixture(params=[*FOREIGN, "bridge"])
def foreign(request):
    if request.param == "bridge":
        settings = TransformerBridgeConfig(**SIZES, act_fn="gelu", normalization_type="LN")
        return shaken(TransformerBridge.boot_native(settings))
    if NEW_LENS:
        pytest.skip("TransformerLens 4 has no HookedTransformer")
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    return shaken(HookedTransformer(HookedTransformerConfig(**{**SIZES, **FOREIGN[request.param]})))


def streams_of(source, batch=None, **choice):
    activations = Activations(select(source, batch=batch, **choice).at())
    return Streams(activations, 0), activations


def added(leaves):
    return sum(leaf.value.double().sum(-1) for leaf in leaves)


def check_sums(streams, a):
    """Logits at the first, a middle and the last position, and their differences; scores of all heads between them."""
    T = a.logits.shape[1]
    at = torch.tensor([0, T // 2, T - 1])
    own, y, other = a.logits[0, at].double(), a.logits[0, at].argmax(-1), a.logits[0, at].argmin(-1)
    rows = torch.arange(3)
    torch.testing.assert_close(added(streams.logits(at, y)), own[rows, y], rtol=1e-4, atol=1e-4)
    difference = own[rows, y] - own[rows, other]
    torch.testing.assert_close(added(streams.logits(at, y, other)), difference, rtol=1e-4, atol=1e-4)
    queries, keys = torch.tensor([0, T - 1, T - 1, T - 1]), torch.tensor([0, 0, T // 2, T - 1])
    for head in streams.graph.heads:
        found = added(leaf for _, leaf in streams.scores(head, queries, keys))
        log = streams.pattern(head)[queries, keys].double().log()
        seen = log[1:] > -60
        torch.testing.assert_close(
            (found[1:] - found[3])[seen & seen[-1]], (log[1:] - log[3])[seen & seen[-1]], rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SHIPPED.glob("*/manifest.json")))
def test_terms_add_up_to_the_logits_and_scores_of_every_shipped_run(name):
    check_sums(*streams_of(name, sequences=1))


def test_terms_add_up_in_models_that_others_bring(foreign):
    tokens = torch.randint(11, (1, 21), generator=torch.Generator().manual_seed(0))
    streams, a = streams_of(foreign, tokens)
    check_sums(streams, a)
    reason = explain(a, ([str(z) for z in tokens[0].tolist()], [str(z) for z in range(11)]), position=20)
    sums = reason.terms.groupby("of")["value"].sum()
    assert sums["logit"] == pytest.approx(reason.logit, rel=1e-4, abs=1e-4)
    feed = [w for w in streams.graph.writers if w.startswith("FF") and not streams.split(w)]
    assert [one for one in reason.held if one.startswith("FF")] == [f"{w} (one part)" for w in feed]


def test_scores_are_the_models_own_before_the_softmax():
    model = build(ModelConfig.full(d_model=24, n_ctx=16, n_heads=2, layer_norm=True))
    batch = sample(TINY, 1, step_rng(4, 0))
    _, cache = model.run_with_cache(batch.tokens)
    streams, _ = streams_of(model, batch)
    for layer, head in itertools.product((1, 2), (1, 2)):
        own = cache[f"blocks.{layer - 1}.attn.hook_attn_scores"][0, head - 1, 12, [0, 5, 12]]
        queries, keys = torch.tensor([12] * 3), torch.tensor([0, 5, 12])
        found = added(leaf for _, leaf in streams.scores(f"L{layer}H{head}", queries, keys))
        torch.testing.assert_close(found.float(), own, rtol=1e-4, atol=1e-4)


def test_the_terms_are_those_of_a_loop_over_paths():
    """Two layers of one head, no norm, a linear feed-forward: every path written out, position by position."""
    model = build(ModelConfig(d_model=16, n_ctx=8), seed=3)
    tokens, t, y = torch.tensor([[5, 3, 7, 5, 1, 3, 2]]), 5, 9
    streams, a = streams_of(model, tokens)
    first, second = (a.pattern(layer)[0, 0] for layer in (1, 2))
    w_E, p, w_U = (im.model.embedding(model, name) for name in ("w_E", "p", "w_U"))
    Phi_1, Phi_2, W_F = (im.model.matrix(model, name) for name in ("Phi_1", "Phi_2", "W_F"))
    z, expected = tokens[0], {}
    for part, at in itertools.product(("embed", "pos"), range(6)):
        x = w_E[z[at]] if part == "embed" else p[at]
        for name, W in (((), torch.eye(16)), (("FF2",), W_F)):
            g = W.T @ w_U[y]
            here = float(g @ x) if at == t else 0.0
            expected[name, part, at] = here
            expected[(*name, "L1H1"), part, at] = float(first[t, at] * (g @ Phi_1 @ x))
            expected[(*name, "L2H1"), part, at] = float(second[t, at] * (g @ Phi_2 @ x))
            twice = sum(second[t, s] * first[s, at] * (g @ Phi_2 @ Phi_1 @ x) for s in range(at, t + 1))
            expected[(*name, "L2H1", "L1H1"), part, at] = float(twice)
    for leaf in streams.logits(torch.tensor([t]), torch.tensor([y])):
        if leaf.part == "bias":
            assert leaf.value.abs().max() == 0
            continue
        values = leaf.value[0].tolist()
        found = values if len(values) > 1 else [values[0] if at == t else 0.0 for at in range(6)]
        for at in range(6):
            assert found[at] == pytest.approx(expected.pop((leaf.path, leaf.part, at)), abs=1e-5)
    assert expected == {}


def shares(model, task):
    """Median shares of the ideal pairs in the choice of the key, and in the predicted output's logit."""
    table = im.probes.reasons(model, sample(task, 4, step_rng(0, 0)), task=task)
    table = table[table["rival"] > 1]  # the first position attends to itself, and carries its own token
    choice = table["signal"] / (table["signal"].abs() + (table["odds"] - table["signal"]).abs())
    return choice.median(), (table["written"] / table["logit"]).median()


@pytest.mark.parametrize("task", [FIXED, RANDOM], ids=["fixed", "random"])
def test_ideal_pairs_hold_nearly_everything_in_the_construction_and_nearly_nothing_at_random(task):
    choice, written = shares(constructed(task), task)
    assert choice > 0.7
    assert written == pytest.approx(1, abs=0.15)
    choice, written = shares(untrained(feed_forward="none"), task)
    assert abs(choice) < 0.2
    assert abs(written) < 0.2


def test_a_sentence_for_all_positions_is_that_of_each_one():
    run = im.load("induction-small")
    batch = run.task.sample(2, step_rng(0, 0))
    table = im.probes.reasons(run, batch, step=600)
    _, a = streams_of(run, batch, step=600)
    names = run.task.labels()[0]
    for _, row in table.iloc[[0, len(table) // 2, -1]].iterrows():
        words = [names[z] for z in batch.tokens[row["sequence"]].tolist()]
        reason = explain(a, (words, names), row=row["sequence"], position=row["position"])
        sums = reason.terms[reason.terms["of"] == "logit"].groupby("memory")["value"].sum()
        assert row[sums.index.tolist()].astype(float).tolist() == pytest.approx(sums.tolist(), abs=1e-3)
        one = reason.heads[0]
        assert (reason.predicted, one.head, one.key, one.rival) == tuple(row[["predicted", "head", "key", "rival"]])
        assert (one.weight, one.odds, one.signal) == pytest.approx(
            tuple(row[["attention", "odds", "signal"]]), abs=1e-3
        )


def test_what_comes_later_changes_nothing_and_one_token_is_enough():
    run = im.load("induction-small")
    names = run.task.labels()[0]
    tokens = torch.tensor([[5, 3, 7, 5, 0, 0, 0]])
    found = []
    for length in (5, 7):
        _, a = streams_of(run, tokens[:, :length])
        found.append(explain(a, ([names[z] for z in tokens[0, : length - 1]], names), position=4))
    assert found[0].terms["value"].tolist() == pytest.approx(found[1].terms["value"].tolist(), abs=1e-4)
    _, a = streams_of(run, tokens[:, :2])
    alone = explain(a, ([names[5]], names), position=1)
    assert alone.terms.loc[alone.terms["of"] == "logit", "value"].sum() == pytest.approx(alone.logit, rel=1e-4)
    assert [(one.key, one.rival, one.weight) for one in alone.heads] == [(1, 0, 1.0)] * len(alone.heads)


def test_a_model_that_computes_something_else_is_refused():
    model = build(ModelConfig(d_model=16, n_ctx=8), seed=3)
    model.blocks[1].hook_attn_out.add_hook(lambda value, hook: 2 * value, is_permanent=True)
    _, a = streams_of(model, torch.tensor([[5, 3, 7, 5, 1]]))
    with pytest.raises(UnsupportedError, match="weights say all that it computes: of logit"):
        explain(a, (list("abcd"), list(map(str, range(65)))), position=4)


def erased(W, u, v):
    """The smallest change after which v^T W u = 0."""
    return W - (v @ W @ u) * torch.outer(v, u) / (v @ v * (u @ u))


@pytest.fixture(scope="module")
def surgeries():
    """200 in-context positions of random-triggers: what their attention and logit lose without the pairs they name.

    In this run W_F writes most of the answer: it reads Phi_2 w_E(b), which the head wrote, and stores b for it.
    """
    run = im.load("random-triggers")
    model, names, batch = run.model(1000), run.task.labels()[0], run.task.sample(8, step_rng(1, 0))
    table = im.probes.reasons(run, batch, step=1000)
    table = table[table["rival"] > 1].head(200)
    r, t, key, rival = (torch.tensor(table[name].to_numpy()) - int(name != "sequence") for name in PLACES)
    y = torch.tensor([names.index(name) for name in table["predicted"]])
    w_E, w_U = (im.model.embedding(model, name) for name in ("w_E", "w_U"))
    Phi_2, W_F = im.model.matrix(model, "Phi_2"), im.model.matrix(model, "W_F").clone()

    def observed():
        logits, cache = model.run_with_cache(batch.tokens, names_filter="blocks.1.attn.hook_pattern")
        A = cache["blocks.1.attn.hook_pattern"][:, 0].log()
        return A[r, t, key] - A[r, t, rival], logits[r, t, y]

    with torch.no_grad():
        odds, logit = observed()
        lost_odds, lost_logit = torch.zeros_like(odds), torch.zeros_like(logit)
        carried, attended = batch.tokens[r, key - 1], batch.tokens[r, key]
        for token in carried.unique().tolist():
            with edited(model, run.task, memory="W_K2", erase=names[token]):
                lost_odds = torch.where(carried == token, odds - observed()[0], lost_odds)
        for token in attended.unique().tolist():
            im.model.set_matrix(model, "W_F", erased(W_F, Phi_2 @ w_E[token], w_U[token]))
            lost_logit = torch.where(attended == token, logit - observed()[1], lost_logit)
        im.model.set_matrix(model, "W_F", W_F)
        by_W_F = torch.stack([w_U[k] @ W_F @ Phi_2 @ w_E[k] for k in attended]) * torch.tensor(
            table["attention"].tolist()
        )
    found = {"matched": carried == batch.tokens[r, t], "says": attended == y, "lost_odds": lost_odds}
    found |= {"by_W_F": by_W_F, "lost_logit": lost_logit}
    return table.assign(**{name: values.numpy() for name, values in found.items()})


PLACES = ("sequence", "position", "key", "rival")


def test_erasing_exactly_the_named_pairs_loses_the_named_attention_and_output(surgeries):
    assert len(surgeries) == 200
    found = surgeries[surgeries["matched"]]  # the key follows the query's own token: W_K2's pair of it is named
    assert len(found) > 100
    assert (found["lost_odds"] > 0).mean() > 0.9
    assert found["signal"].corr(found["lost_odds"]) > 0.8
    right = surgeries[surgeries["says"]]
    assert (right["lost_logit"] > 0).all()
    assert right["by_W_F"].corr(right["lost_logit"]) > 0.8
    assert right["lost_logit"].mean() == pytest.approx(right["by_W_F"].mean(), rel=0.15)
