import math

import pytest
import torch

from induction_memory import probes
from induction_memory.probes import prediction
from induction_memory.probes.activations import Activations
from induction_memory.source.sources import select
from induction_memory.task.bayes import optimal_scores, predict
from induction_memory.task.sampler import sample, step_rng
from tests.probe_sources import FIXED, TINY, constructed, untrained


def slow_kind(prefix: list[int]) -> str:
    current = prefix[-1]
    successors = {prefix[s + 1] for s in range(len(prefix) - 1) if prefix[s] == current}
    return ["new", "one_successor", "many_successors"][min(len(successors), 2)]


def test_visible_kinds_are_what_a_reader_of_the_prefix_sees():
    tokens = torch.randint(3, (5, 12), generator=torch.Generator().manual_seed(1))
    kinds = prediction.visible_kind(tokens)
    for b in range(5):
        for t in range(12):
            assert prediction.VISIBLE[kinds[b, t]] == slow_kind(tokens[b, : t + 1].tolist())


def test_losses_by_kind_equal_a_loop_over_positions():
    model, batch = untrained(d_model=24, length=16), sample(TINY, 8, step_rng(1, 0))
    log_q = model(batch.tokens).log_softmax(-1)
    groups: dict[str, list[float]] = {}
    for b in range(8):
        for t in range(16):
            loss, count = -log_q[b, t, batch.targets[b, t]].item(), int(batch.counts[b, t])
            kinds = [
                "",
                "_" + slow_kind(batch.tokens[b, : t + 1].tolist()),
                f"_occurrence{count}" if count else "_global",
            ]
            kinds += ["_first_occurrence"] if count == 1 else ["_in_context"] if count >= 2 else []
            for kind in kinds:
                groups.setdefault(kind, []).append(loss)
    names = [f"loss{kind}" for kind in groups]
    found = probes.table(model, names, task=TINY, batch=batch).set_index("probe")["value"]
    for kind, losses in groups.items():
        assert found[f"loss{kind}"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_split_of_the_excess_adds_up_and_the_optimal_loss_is_the_least():
    batch = sample(FIXED, 64, step_rng(2, 0))
    best = optimal_scores(FIXED, batch).overall
    for model in (constructed(), untrained(), untrained(feed_forward="none")):
        found = probes.table(model, "prediction", task=FIXED, batch=batch).set_index("probe")["value"]
        for whole in ("excess", "kl_bayes"):
            assert found[whole] == pytest.approx(sum(found[f"{whole}_{kind}"] for kind in prediction.VISIBLE))
        assert found["bayes_loss"] == pytest.approx(best.loss)
        assert found["excess"] == pytest.approx(found["loss"] - best.loss)
        assert found["excess"] > -3 * best.loss_error
        assert abs(found["excess"] - found["kl_bayes"]) < 0.3


def test_references_are_at_distance_zero_from_themselves():
    batch = sample(TINY, 4, step_rng(3, 0))
    pi_u, pi_b = torch.tensor(TINY.unigram), torch.tensor(TINY.bigram)
    references = {
        "uniform": torch.full((4, 16, 65), 1 / 65, dtype=torch.float64),
        "unigram": pi_u.expand(4, 16, -1),
        "bigram": pi_b[batch.tokens],
        "bayes": predict(TINY, batch.tokens).probabilities,
    }
    for name, q in references.items():
        at = pretending(q.log(), batch)
        assert prediction.PROBES[f"kl_{name}"].measure(at).item() == pytest.approx(0, abs=1e-12)
        for other in set(references) - {name}:
            assert prediction.PROBES[f"kl_{other}"].measure(at).item() > 0.01
    uniform = pretending(references["uniform"].log(), batch)
    assert prediction.PROBES["loss"].measure(uniform).item() == pytest.approx(math.log(65))


def pretending(log_q, batch):
    """The activations of a model that predicts q."""
    model = untrained(d_model=24, length=16)
    at = Activations(select(model, task=TINY, batch=batch).at())
    at.cache = {"logits": log_q}
    return at


def test_the_constructed_model_predicts_outputs_in_context_only():
    found = probes.table(constructed(), "prediction", task=FIXED).set_index("probe")["value"]
    assert found["accuracy_in_context"] > 0.95
    assert found["accuracy_occurrence2"] > 0.95
    assert found["accuracy_first_occurrence"] < 0.15
    chance = probes.table(untrained(feed_forward="none"), "prediction", task=FIXED).set_index("probe")["value"]
    assert chance["accuracy_in_context"] < 0.1
    assert chance["kl_uniform"] < 1


def test_a_kind_that_the_batch_lacks_is_skipped_with_its_reason():
    model = untrained(d_model=24, length=16)
    table = probes.table(model, ["loss", "loss_occurrence99"], task=TINY)
    assert table["probe"].tolist() == ["loss"]
    assert "occurrence99" in table.attrs["skipped"]["loss_occurrence99"]
