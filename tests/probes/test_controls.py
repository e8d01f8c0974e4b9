import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from analyses import probe_controls as controls
from analyses import probe_page
from induction_memory import probes

DOCS = Path(__file__).parents[2] / "docs" / "probes.md"
SMALL = {"d": 320, "length": 48}


@pytest.fixture(scope="module")
def found():
    return controls.measure_controls(**SMALL, d_with_W_F=320)


@pytest.mark.slow
def test_every_probe_has_its_known_value_on_the_controls(found):
    assert controls.failures(found, **SMALL) == []


@pytest.mark.slow
def test_every_probe_is_measured_on_some_control_or_needs_more_than_a_model(found):
    missing = found.index[found.isna().all(axis=1)]
    need_a_run = {"dla_feed_forward1", *(f"distance_{W}" for W in ("W_K1", "W_K2", "W_O2", "W_F"))}
    need_layer_norm = {"W_K1_normed", "W_K2_normed", "W_K1_raw", "W_K2_raw", "W_O2_raw", "W_F_kl_raw"}
    assert set(missing) == need_a_run | need_layer_norm


@pytest.mark.slow
def test_a_value_outside_its_range_is_named(found):
    broken = found.copy()
    broken.loc["W_O2", "constructed"] = 0.5
    assert controls.failures(broken, **SMALL) == ["constructed, W_O2: 0.5 not in 1 to 1"]


def test_signal_to_interference_of_random_memories_is_the_formula():
    rng = np.random.default_rng(0)
    d, n = 400, 60
    u, v = (rng.standard_normal((n, d)) / d**0.5 for _ in range(2))
    scores = v @ (v.T @ u) @ u.T
    noise = scores[~np.eye(n, dtype=bool)].std()
    assert scores.diagonal().mean() / noise == pytest.approx(controls.signal_to_interference(d, n, 1), rel=0.1)


def test_the_page_explains_and_measures_every_probe():
    page = DOCS.read_text(encoding="utf-8")
    for name in probes.names():
        assert f"`{name}`" in page, name
    assert "Every value with a known range is inside it." in page


def test_the_page_lists_every_probe_once():
    for family in probe_page.tables.FAMILIES.values():
        rows = probe_page.together(family.PROBES)
        listed = [
            re.sub("<(memory|layer|n)>", place.strip("`"), name)
            for name, _, places in rows
            for place in re.split(r",\s", places)
        ]
        assert sorted(listed) == sorted(family.PROBES)
        assert len(rows) <= 40


def test_probes_with_different_formulas_have_rows_of_their_own():
    rows = {
        name: (text, places)
        for name, text, places in probe_page.together(probe_page.tables.FAMILIES["attribution"].PROBES)
    }
    assert rows["dla_W_F_token"][0].startswith("W_F w_E(z_t)")
    assert rows["dla_W_O2_token"][0].startswith("sum_s A[t, s] of Phi_2 w_E(z_s)")
    assert rows["dla_feed_forward<layer>"][0].startswith("feed-forward of layer <layer>")


def test_every_probe_stands_in_one_small_table_of_the_controls():
    names = [name for family in probe_page.tables.FAMILIES.values() for name in family.PROBES]
    tables = {name: probe_page.question_of(name) for name in names if not name.endswith(("_normed", "_raw"))}
    assert [name for name, titles in tables.items() if len(titles) != 1] == []
    sizes = Counter(titles[0] for titles in tables.values())
    assert len(sizes) == len(probe_page.QUESTIONS)
    assert max(sizes.values()) <= 14
