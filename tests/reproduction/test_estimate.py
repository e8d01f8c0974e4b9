"""Uncertainties of measured numbers."""

import math

import numpy as np
import pytest

from induction_memory.paper import plan
from induction_memory.paper import records as record_files
from induction_memory.paper.claims.estimate import (
    FREEDOM,
    SEED_SPREAD,
    from_extreme,
    over_draws,
    over_seeds,
    pooled,
    spread,
)
from induction_memory.paper.verdicts import Estimate
from induction_memory.trajectory.search import SHIPPED


def measured_spread(groups):
    """The spread between seeds of each measure; for recalls also over three memories and three times."""
    memories, steps = ("W_O2", "W_K2", "W_K1_first64"), (200, 300, None)
    measures = {
        "accuracy": [lambda run: math.asin(math.sqrt(run.accuracy())) * 2],  # of unit spread sqrt(p (1 - p))
        "mean accuracy": [lambda run: run.curve("accuracy_in_context")[1].mean()],
        "recall": [lambda run, name=name, step=step: run.recall(name, step) for name in memories for step in steps],
        "mean recall": [lambda run, name=name: run.mean_recall(name) for name in memories],
    }
    return {
        kind: spread([np.mean([np.var([of(run) for run in runs], ddof=1) for of in some]) for runs in groups], FREEDOM)
        for kind, some in measures.items()
    }


def test_the_spread_between_seeds_is_that_of_figure_3():
    records = record_files.read_all(SHIPPED / record_files.FOLDER)
    found = measured_spread([records.of(name) for name in plan.FREEZING.values()])
    assert found == pytest.approx(SEED_SPREAD, rel=0.02)


def test_errors_of_differences_and_quotients_are_propagated():
    a, b = Estimate(0.6, 0.03, "seeds"), Estimate(0.2, 0.04, "seeds")
    assert ((a - b).value, (a - b).error) == pytest.approx((0.4, 0.05))
    rng = np.random.default_rng(0)
    draws = rng.normal(0.6, 0.003, 100_000) / rng.normal(0.2, 0.001, 100_000)
    share = Estimate(0.6, 0.003, "") / Estimate(0.2, 0.001, "")
    assert (share.value, share.error) == pytest.approx((3, draws.std()), rel=0.02)
    assert math.isnan((a / Estimate(0.0, 0.0, "")).value)


def test_an_interval_over_draws_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [over_draws(rng.normal(size=4)) for _ in range(2000)]
    assert np.mean([abs(one.value) <= one.error for one in found]) == pytest.approx(0.95, abs=0.02)
    assert math.isnan(over_draws([1.0]).error)


def test_an_interval_from_repeated_settings_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [pooled(list(rng.normal(size=2)), rng.normal(size=(5, 3)).tolist()) for _ in range(4000)]
    assert np.mean([abs(one.value) <= one.error for one in found]) == pytest.approx(0.95, abs=0.015)
    assert math.isnan(pooled([0.5], []).error)
    assert math.isnan(pooled([0.5], [[1.0], [2.0]]).error)


def test_one_setting_with_a_large_spread_does_not_decide_the_error():
    alike = [[1.0, 3.0, 2.0]] * 4
    assert pooled([0.5], [*alike, [0.0, 900.0, 1.0]]).error == pooled([0.5], [*alike, [1.0, 3.0, 2.0]]).error


def test_an_accuracy_of_one_has_no_spread():
    assert over_seeds([1.0], "accuracy").error == 0
    assert over_seeds([0.9], "accuracy").error > over_seeds([0.9] * 4, "accuracy").error > 0


def test_the_way_from_the_extreme_has_the_noise_of_the_last_values():
    values = np.array([0.2, 0.9, 0.5, 0.6, 0.5, 0.6, 0.5])
    found = from_extreme(values)
    assert (found.value, found.error) == pytest.approx((0.4, 2 * values[-5:].std(ddof=1)))
    assert from_extreme(values, ratio=True).value == pytest.approx(2.5)
