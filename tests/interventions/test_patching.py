import numpy as np
import pytest
import torch

from induction_memory.errors import InputError
from induction_memory.interventions import circuits
from induction_memory.interventions.circuits import discover
from induction_memory.interventions.patching import (
    agreement,
    attribute,
    gradient,
    patch,
    patch_activations,
    patch_paths,
    position_masks,
)
from induction_memory.interventions.scores import contrast, effects
from induction_memory.model.building import build
from induction_memory.model.config import ModelConfig
from induction_memory.runner.components import Graph
from induction_memory.runner.recording import Patch
from induction_memory.source.sources import select
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.corruptions import corrupt, pairs_of
from induction_memory.task.sampler import make_batch, sample, step_rng
from tests.hooked_twin import hooked_logits

TASK = BigramTask(k=3, length=24)
CONFIG = ModelConfig.simplified(d_model=16, n_ctx=24)


@pytest.fixture(scope="module")
def model():
    return build(CONFIG, seed=0)


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 24, step_rng(0, 0))


@pytest.fixture(scope="module")
def runs(model, batch):
    return contrast(model, corrupt(batch, "trigger", np.random.default_rng(0)))


def characters(text):
    return TASK.tables.encode(text)


@pytest.fixture
def line():
    """x y a b z a b c a b, with trigger a and output b."""
    return make_batch(TASK, characters("xyabzabcab")[None], characters("a")[None], characters("b")[None])


@pytest.mark.parametrize(
    ("corruption", "query", "changed"),
    [
        ("output", "second", [3]),
        ("trigger", "second", [2]),
        ("first", "second", [2, 3]),
        ("output", "last", [3, 6]),
        ("trigger", "last", [2, 5]),
        ("first", "last", [2, 3]),
    ],
)
def test_a_corruption_changes_only_what_it_says(line, corruption, query, changed):
    pairs = corrupt(line, corruption, np.random.default_rng(0), query=query)
    assert pairs.query.tolist() == [5 if query == "second" else 8]
    assert pairs.answer.tolist() == characters("b").tolist()
    assert pairs.roles["trigger"].tolist() == [2]
    before, after = pairs.clean.tokens[0], pairs.corrupted.tokens[0]
    assert torch.nonzero(before != after).flatten().tolist() == changed
    assert not set(after[changed].tolist()) & set(characters("ab").tolist())


def test_sequences_without_a_query_are_left_out(line):
    no_repeat = make_batch(TASK, characters("xyabzwvcdk")[None], characters("a")[None], characters("b")[None])
    with pytest.raises(InputError, match="in which a trigger, or a pair of tokens, comes twice"):
        corrupt(no_repeat, "output", np.random.default_rng(0))


def test_each_path_has_the_effect_of_one_hooked_forward(model, runs):
    table = patch_paths(runs)
    answer, at = runs.pairs.answer, (torch.arange(len(runs.pairs.query)), runs.pairs.query)

    def measure(logits):
        here = logits[at]
        return (here[torch.arange(len(here)), answer] - here.mean(-1)).mean().item()

    clean, corrupted = measure(runs.start.logits), measure(runs.end.logits)
    assert [f"{row.source}->{row.target}" for row in table.itertuples()] == list(runs.start.graph.edges)
    for row in table.itertuples():
        edge = f"{row.source}->{row.target}"
        patched = measure(hooked_logits(model, runs.start.tokens, [Patch(edge, runs.end.at(row.source))]))
        assert row.logit == pytest.approx(patched, abs=1e-5)
        assert row.effect == pytest.approx((clean - patched) / (clean - corrupted), abs=1e-3)


def test_patching_nothing_has_no_effect_and_patching_everything_the_whole(runs):
    everything = [Patch(edge, runs.end.at(edge.split("->")[0])) for edge in runs.start.graph.edges]
    table = effects(runs, [[], everything])
    assert table["effect"].tolist() == pytest.approx([0, 1], abs=1e-4)
    assert table["effect_se"].tolist() == pytest.approx([0, 0], abs=1e-3)


def test_restoring_goes_the_other_way(model, runs, batch):
    back = contrast(model, runs.pairs, "restore")
    assert torch.equal(back.start.logits, runs.end.logits)
    whole = [Patch(edge, back.end.at(edge.split("->")[0])) for edge in back.start.graph.edges]
    assert effects(back, [whole])["logit"][0] == pytest.approx(effects(runs, [[]])["logit"][0], abs=1e-5)


def test_the_stream_before_a_layer_carries_everything_before_it(runs):
    table = patch_activations(runs, ["stream1", "stream2"], positions="all").set_index("component")
    assert table.loc["stream1", "effect"] == pytest.approx(1, abs=1e-4)
    assert table.loc["stream2", "effect"] == pytest.approx(1, abs=1e-4)


def test_roles_divide_the_positions_among_them(runs):
    masks = position_masks(runs.pairs, "roles")
    assert list(masks) == ["trigger", "output", "query", "elsewhere"]
    assert (torch.stack(list(masks.values())).sum(0) == 1).all()
    each = position_masks(runs.pairs, "each")
    assert list(each) == list(range(1, 25))


def test_one_call_gives_positions_by_component_and_paths_by_edge(model, batch):
    table = patch(model, batch, corruption="output", components=["heads"], positions=[1, 5])
    assert list(zip(table["component"], table["position"], strict=True)) == [
        (head, position) for head in ("L1H1", "L2H1") for position in (1, 5)
    ]
    paths = patch(model, batch, kind="path", components=["L1->L2.k", "embed->out"])
    assert paths["source"].tolist() == ["L1", "embed"]
    assert {"accuracy", "accuracy_se", "logit", "logit_se", "effect", "effect_se"} <= set(paths.columns)


def test_the_gradient_is_the_slope_of_the_exact_effect(runs):
    edges = runs.start.graph.edges
    small = 1e-2
    nudged = effects(runs, [[Patch(e, runs.end.at(e.split("->")[0]), amount=small)] for e in edges])["effect"] / small
    np.testing.assert_allclose(gradient(runs, 0.0).numpy(), nudged.to_numpy(), atol=0.03, rtol=0.1)


def test_integrated_gradients_sum_to_the_whole_effect_and_agree_better(runs):
    table = attribute(runs, points=12)
    assert table["integrated"].sum() == pytest.approx(1, abs=0.02)
    report = agreement(table).set_index("method")
    assert set(report.index) == {"gradient", "integrated"}
    assert (report["edges"] == len(table)).all()
    by_hand = np.corrcoef(table["exact"], table["gradient"])[0, 1]
    assert report.loc["gradient", "correlation"] == pytest.approx(by_hand)


def test_circuits_of_no_and_of_all_edges_mark_the_ends_of_the_curve(model, batch):
    n = len(Graph.of(model).edges)
    found = discover(model, batch[:8], points=1, random_orders=2, sizes=[0, n])
    assert set(found.curve["ranking"]) == {"exact", "gradient", "integrated", "random"}
    ends = found.curve[found.curve["n"].isin([0, n])]
    np.testing.assert_allclose(ends["faithfulness"], np.tile([0, 1], 4), atol=1e-3)
    np.testing.assert_allclose(ends["completeness"], np.tile([0, 1], 4), atol=1e-3)
    strongest = found.edges["exact"].max()
    assert set(found.circuit) == set(found.edges["edge"][found.edges["exact"] > 0.05 * strongest])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"corruption": "sideways"}, "corruption: expected one of output, trigger, first"),
        ({"kind": "else"}, "kind: expected one of activation, path"),
        ({"direction": "up"}, "direction: expected one of corrupt, restore"),
        ({"positions": [25]}, "positions: expected 1 to 24"),
        ({"positions": "some"}, "positions: expected roles, each, all or numbers"),
        ({"components": ["L3H1"]}, "component: expected one of embed, pos, L1H1, L2H1, FF2"),
        ({"kind": "path", "components": ["L1H1"]}, "edges: expected names like"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(unchecked, model, batch, arguments, says):
    with pytest.raises(InputError) as error:
        patch(model, batch, **arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_raw_tokens_are_patched_at_a_pair_that_came_before(model):
    text = torch.from_numpy(characters("xyabzacqabuvw"))[None]
    pairs = pairs_of(None, select(model, batch=text).batch, "trigger", np.random.default_rng(0))
    assert pairs.query.tolist() == [8]  # the second a that b follows
    assert pairs.answer.tolist() == characters("b").tolist()
    changed = (pairs.clean.tokens != pairs.corrupted.tokens).nonzero()[:, 1].tolist()
    assert changed == [2]  # the a before z is left alone
    assert pairs.roles["output"].tolist() == [3]
    assert pairs.corrupted.tokens[0, 2] not in (*characters("ab"),)
    table = patch(model, text, positions="all")
    whole = table.set_index("component").loc["stream1", "effect"]
    assert whole == pytest.approx(1.0, abs=1e-3)


def test_an_interrupted_curve_keeps_the_circuits_that_are_scored(model, batch, monkeypatch, capsys):
    how = {"rankings": ("exact",), "random_orders": 1, "task": TASK}
    whole = discover(model, batch, **how)
    calls, performance = [], circuits._Bench.performance

    def stops(bench, logits):
        calls.append(1)
        if len(calls) > 2 * (3 + len(bench.graph.edges)):
            raise KeyboardInterrupt
        return performance(bench, logits)

    monkeypatch.setattr(circuits._Bench, "performance", stops)
    part = discover(model, batch, **how)
    assert "circuits are kept" in capsys.readouterr().err
    assert part.circuit == whole.circuit
    assert 0 < len(part.curve) < len(whole.curve)
    both = part.curve.merge(whole.curve, on=["ranking", "n"], suffixes=("", "_whole"))
    exact = both[both["ranking"] == "exact"]
    assert np.allclose(exact["faithfulness"], exact["faithfulness_whole"], atol=1e-4)
