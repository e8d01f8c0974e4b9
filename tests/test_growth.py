"""The benchmark of growth: its fit, and that each of its works runs at a size it names."""

import json

import numpy as np
import pandas as pd
import pytest

from bench import growth


def test_the_exponent_is_that_of_a_power_and_of_its_largest_sizes():
    sizes = np.array([1, 2, 4, 8, 16])
    assert growth.exponent(sizes, 3.0 * sizes**1.5) == pytest.approx(1.5)
    assert growth.exponent(sizes, np.array([100, 100, 2, 4, 8])) == pytest.approx(1)
    assert np.isnan(growth.exponent(sizes, np.zeros(5)))


def test_a_summary_has_one_row_per_growth_with_both_ends():
    rows = [
        {
            "work": one.work,
            "doubles": one.doubles,
            "size": size,
            "seconds": 0.1 * size**one.allowed,
            "bytes": 1e6 * size,
        }
        for one in growth.GROWTHS
        for size in one.sizes
    ]
    found = growth.summary(pd.DataFrame(rows))
    assert len(found) == len(growth.GROWTHS)
    assert found["exponent of time"].to_numpy() == pytest.approx(found["allowed"].to_numpy(dtype=float))
    assert found["of memory"].to_numpy() == pytest.approx(1)
    json.dumps(found.to_dict("records"))


@pytest.mark.slow
@pytest.mark.parametrize("one", growth.GROWTHS, ids=lambda one: f"{one.work} {one.doubles}")
def test_each_work_runs_at_two_small_sizes(one, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for size in one.sizes[:2]:
        growth.WORK[one.work](**{one.doubles: size})()
