import numpy as np
import pytest
import torch

from induction_memory import probes
from induction_memory.errors import InputError
from induction_memory.probes import emergence
from induction_memory.training.run import start
from tests.probe_sources import RANDOM, constructed, stacked, untrained
from tests.probes.test_atlas import growing
from tests.tiny_runs import tiny


def slow_split(steps, curve):
    """The best two-level fit, every split tried."""
    weight = np.gradient(np.asarray(steps, float))
    best = None
    for i in range(1, len(curve)):
        a, b = (np.average(curve[s], weights=weight[s]) for s in (slice(0, i), slice(i, None)))
        error = (weight[:i] * (curve[:i] - a) ** 2).sum() + (weight[i:] * (curve[i:] - b) ** 2).sum()
        if best is None or error < best[0]:
            best = error, a, b
    return best[1:]


def test_the_levels_are_those_of_the_best_step_function():
    rng = np.random.default_rng(0)
    steps = np.sort(rng.choice(1000, 40, replace=False))
    curve = 1 / (1 + np.exp(-(steps - 400) / 40)) + 0.05 * rng.standard_normal(40)
    change, a, b = emergence.change_point(steps, curve)
    assert (a, b) == pytest.approx(slow_split(steps, curve))
    assert abs(change - 400) < 40


def test_a_step_changes_where_it_steps_and_a_constant_never():
    steps = np.arange(0, 100, 10)
    change, a, b = emergence.change_point(steps, (steps >= 50).astype(float))
    assert (change, a, b) == (45, 0, 1)
    assert np.isnan(emergence.change_point(steps, np.ones(10))[0])


def test_the_interval_covers_the_truth_and_narrows_with_more_replicates():
    rng, steps = np.random.default_rng(1), np.arange(0, 1000, 20)
    onset = rng.normal(500, 80, size=200)
    curves = (steps[None] >= onset[:, None]).astype(float)
    widths = []
    for n in (10, 200):
        drawn = emergence.bootstrap(steps, curves[:n], resamples=300, rng=np.random.default_rng(2))
        low, high = np.quantile(drawn, [0.025, 0.975])
        assert low - 60 <= 500 <= high + 60
        widths.append(high - low)
    assert widths[1] < widths[0]


def test_a_recall_of_one_run_is_resampled_over_its_associations():
    weights = growing(list(range(65)))
    row = probes.change_points(weights, ["W_O2"]).iloc[0]
    assert row["over"] == "associations"
    assert row["replicates"] == 65
    assert row["change_low"] <= row["change"] <= row["change_high"]
    assert abs(row["change"] - 33) < 8


def test_other_probes_are_resampled_over_batches_and_seeds(tmp_path):
    runs = [start(tiny(data_seed=seed), tmp_path / f"{seed}", progress=False) for seed in (11, 12)]
    one = probes.change_points(runs[0], ["loss_in_context"], batches=3, resamples=50).iloc[0]
    assert (one["over"], one["replicates"]) == ("batches", 3)
    both = probes.change_points(runs, ["loss_in_context", "norm_W_O2"], resamples=50)
    assert both["over"].tolist() == ["seeds"] * 2
    assert both["change"].between(0, 12).all()
    with pytest.raises(InputError, match="W_K2_triggers: expected a probe that every run has, got needs fixed"):
        probes.change_points(runs, ["W_K2_triggers"])


def ordered(delays: dict[str, int]) -> dict[str, torch.Tensor]:
    """Weights whose memories appear at given steps of 20, by mixing noise into the ideal ones before."""
    model = constructed(RANDOM, 512)
    noise = untrained(512, feed_forward="none")
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    empty = dict(noise.named_parameters())
    parameters = {"W_K1": "blocks.0.attn.W_K", "W_K2": "blocks.1.attn.W_K", "W_O2": "blocks.1.attn.W_O"}
    for memory, step in delays.items():
        name = parameters[memory]
        weights[name] = torch.stack([weights[name] if s >= step else empty[name].detach() for s in range(20)])
    return weights


def test_the_order_of_births_is_found_and_tested():
    runs = [ordered({"W_O2": 3 + i, "W_K2": 8, "W_K1": 14 - i}) for i in range(3)]
    order = probes.birth_order(runs, resamples=50).set_index("order")
    whole = order.loc["W_O2 < W_K2 < W_K1"]
    assert (whole["runs"], whole["in_order"]) == (3, 3)
    assert whole["p_value"] == pytest.approx((1 / 6) ** 3)
    assert whole["resampled"] == 1
    pair = order.loc["W_O2 < W_K2"]
    assert pair["p_value"] == pytest.approx(1 / 8)
    assert pair["median_lead"] == pytest.approx(4, abs=0.6)
    backwards = probes.birth_order(runs, ("W_K1", "W_K2"), resamples=50).iloc[0]
    assert (backwards["in_order"], backwards["p_value"]) == (0, 1)


def test_the_lag_between_two_curves_is_the_shift():
    steps = np.arange(0, 1000, 10)
    first, second = (1 / (1 + np.exp(-(steps - at) / 15)) for at in (300, 420))
    shift, correlation = emergence.lag(steps, first, 2 - second)  # a falling curve leads or follows as well
    assert shift == pytest.approx(120, abs=6)
    assert correlation > 0.95
    assert emergence.lag(steps, second, first)[0] == pytest.approx(-120, abs=6)


def test_lead_and_lag_of_a_run_s_probes():
    weights = ordered({"W_O2": 4, "W_K2": 9, "W_K1": 15})
    found = probes.lead_lag(weights, ("W_O2", "W_K2", "W_K1")).set_index("second")
    assert found["lag"].tolist() == pytest.approx([5, 6], abs=0.2)
    assert found["change"].tolist() == pytest.approx([5, 6], abs=0.6)
    several = stacked(untrained(24, 16, n_heads=2, identity_queries=False), 3, ("blocks.0.attn.W_K",))
    with pytest.raises(InputError, match="W_K1: expected one value per step"):
        probes.lead_lag(several, ("W_K1", "W_O2"))


def test_a_level_is_a_share():
    with pytest.raises(InputError, match="level"):
        probes.change_points(growing([1]), level=95.0)


def test_runs_that_differ_in_more_than_seeds_are_kept_apart(tmp_path):
    changed = {"a": {}, "b": {"init_seed": 5}, "c": {"learning_rate": 0.01}}
    runs = [start(tiny(**settings), tmp_path / name, progress=False) for name, settings in changed.items()]
    table = probes.change_points(runs, ["W_K1"], resamples=5)
    rates = [runs[0].config.train.learning_rate, 0.01]
    assert table["configuration"].tolist() == [f"train.learning_rate={rate}" for rate in rates]
    assert table["over"].tolist() == ["seeds", "associations"]
    assert "configuration" not in probes.change_points(runs[:2], ["W_K1"], resamples=5)
    assert probes.birth_order(runs, resamples=5).groupby("configuration")["runs"].first().tolist() == [1, 2]
