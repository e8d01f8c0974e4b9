"""The hand-built induction head, whose circuit is known: every method must find just that."""

import numpy as np
import pytest

from induction_memory.interventions.ablations import ablate
from induction_memory.interventions.circuits import INDUCTION_HEAD, discover
from induction_memory.interventions.patching import patch
from induction_memory.model.config import ModelConfig
from induction_memory.model.constructed import construct
from induction_memory.task.bigrams import BigramTask
from induction_memory.task.sampler import sample, step_rng

pytestmark = pytest.mark.slow

# Where a trigger may be its own output, a bag of the last tokens is right half of the time and little is lost.
TASK = BigramTask(k=5, triggers="fixed", length=64, outputs_differ=True)


@pytest.fixture(scope="module")
def model():
    return construct(TASK, ModelConfig.simplified(d_model=1024, n_ctx=64, feed_forward="none"))


@pytest.fixture(scope="module")
def batch():
    return sample(TASK, 48, step_rng(0, 0))


@pytest.fixture(scope="module")
def lost(model, batch):
    """In-context accuracy lost by zeroing each part."""
    table = ablate(model, batch, components=["heads", "W_K1", "W_K2", "W_O2", "parts"], kind="zero")
    accuracy = table.set_index("component")["in_context_accuracy"]
    assert accuracy["none"] > 0.97
    return (accuracy["none"] - accuracy).to_dict()


def test_zeroing_either_head_or_any_of_the_three_memories_breaks_it(lost):
    for name in ("L1H1", "L2H1", "W_K1", "W_K2", "W_O2"):
        assert lost[name] > 0.6, name


def test_zeroing_an_edge_of_the_circuit_breaks_it_and_any_other_edge_changes_nothing(lost):
    parts = {name: loss for name, loss in lost.items() if "->" in name}
    assert set(INDUCTION_HEAD) <= set(parts)
    for name, loss in parts.items():
        if name in INDUCTION_HEAD:
            assert loss > 0.6, name
        else:
            assert abs(loss) < 0.01, name


def test_the_bigrams_in_the_feed_forward_are_not_needed_in_context():
    model = construct(TASK, ModelConfig.simplified(d_model=1024, n_ctx=64))
    parts = ["FF2", "W_F", "embed->FF2", "FF2->out", "W_O2"]
    table = ablate(model, sample(TASK, 48, step_rng(0, 0)), components=parts, kind="zero")
    accuracy = table.set_index("component")["in_context_accuracy"]
    for name in parts[:-1]:
        assert abs(accuracy["none"] - accuracy[name]) < 0.01, name
    assert accuracy["none"] - accuracy["W_O2"] > 0.6


def test_path_patching_finds_the_previous_token_head_in_the_keys_of_the_induction_head_and_nothing_else(model, batch):
    paths = patch(model, batch[:24], kind="path", corruption="trigger")
    effect = paths.set_index(["source", "target"])["effect"].to_dict()
    found = effect.pop(("L1H1", "L2H1.k"))
    assert found == pytest.approx(1, abs=0.05)
    into_induction_head = {edge: e for edge, e in effect.items() if edge[1].startswith("L2H1")}
    from_previous_token_head = {edge: e for edge, e in effect.items() if edge[0] == "L1H1"}
    assert len(into_induction_head) == 8
    for edge, e in (into_induction_head | from_previous_token_head).items():
        assert abs(e) < found / 20, edge
    # in series with it, and so just as large: what it copies, and what comes out
    series = {edge for edge, e in effect.items() if e > found / 20}
    assert series == {("embed", "L1H1.v"), ("L2H1", "out")}


def test_activation_patching_finds_where_the_trigger_is_carried(model, batch):
    table = patch(model, batch[:8], components=["L1H1", "L2H1.k", "embed", "L2H1"], corruption="trigger")
    strong = {(row.component, row.position) for row in table.itertuples() if row.effect > 0.5}
    assert strong == {("embed", "trigger"), ("L1H1", "output"), ("L2H1.k", "output"), ("L2H1", "query")}


def test_the_discovered_circuit_is_exactly_the_known_one(model, batch):
    found = discover(model, batch[:12], rankings=["exact"], random_orders=1, sizes=[0, 7, 19])
    assert set(found.circuit) == set(INDUCTION_HEAD)
    assert found.against() == {"precision": 1, "recall": 1}
    curve = found.curve.set_index(["ranking", "n"])
    assert curve.loc[("exact", 7), "faithfulness"] == pytest.approx(1, abs=0.1)
    assert curve.loc[("exact", 7), "completeness"] == pytest.approx(1, abs=0.1)
    assert curve.loc[("exact", 7), "accuracy"] > 0.95
    assert curve.loc[("random", 7), "faithfulness"] < 0.3
    assert np.allclose([curve.loc[("exact", n), "faithfulness"] for n in (0, 19)], [0, 1], atol=1e-3)
