"""The page of runs of other tasks: a shipped kind, and one that a user wrote."""

import re

import pytest

import induction_memory as im
from induction_memory.views.run_page import report
from tests.task.test_protocol import Parity
from tests.views.page_runs import opened, tab_of

SMALL = {"batch_size": 8, "checkpoints": "every 2", "full_metrics_every": 2, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def markov(tmp_path_factory):
    model = im.ModelConfig.simplified(d_model=16, feed_forward="none")
    task = im.task.MarkovChains(length=12)
    return im.train(task, model, steps=8, loss="all", out=tmp_path_factory.mktemp("runs") / "markov", **SMALL)


@pytest.fixture(scope="module")
def parity(tmp_path_factory):
    model = im.ModelConfig.full(d_model=16, n_heads=2)
    return im.train(Parity(), model, steps=4, loss="all", out=tmp_path_factory.mktemp("runs") / "parity", **SMALL)


@pytest.fixture
def tab(browser):
    page = tab_of(browser)
    yield page
    errors, refused = page.errors, page.refused
    page.context.close()
    assert errors == []
    assert refused == []


def test_the_page_of_a_markov_run_shows_its_predictors_phases_and_groups(markov):
    (meta,) = report(markov).pack.meta["runs"]
    kl = {c["name"]: c for c in meta["curves"] if c["group"] == "kl"}
    table = im.probes.table(markov, "predictors", batch=markov.task.sample(16, im.task.step_rng(2, 0)))
    assert list(kl) == ["kl_to_1-gram", "kl_to_2-gram"]
    for name, curve in kl.items():
        assert curve["values"] == pytest.approx(table.loc[table["probe"] == name, "value"].tolist())
    assert meta["phases"]["text"].startswith("The model is closest to the ")
    assert meta["causes"]["groups"] == {"chain": "At positions of the group chain"}
    assert {memory["memory"] for memory in meta["memories"]} == {"W_K1", "W_K2", "W_O2"}
    assert meta["vocabulary"] == ["0", "1", "2"] == meta["outputs"]


def test_a_markov_page_works_in_a_browser_and_runs_its_model(markov, tab, tmp_path):
    opened(tab, report(markov).save(tmp_path / "markov.html"))
    assert "closest to the" in tab.inner_text("#kl-0")
    assert tab.locator("#kl-0 .phase").count() >= 1
    assert "At positions of the group chain" in tab.inner_text("#causes-0")
    cells = tab.locator("#w-o2-0 canvas").bounding_box()
    assert cells["width"] == cells["height"] <= 3 * 44, "three tokens do not fill a panel"
    tab.fill("#sequence-0 input[type=text]", "0120120")
    assert tab.locator("#sequence-0 .strip .token").count() == 7
    tab.fill("#slider", "1")
    assert re.search(r"step \d+", tab.get_attribute("#slider", "aria-valuetext"))


def test_the_page_of_a_users_task_shows_what_it_offers_and_says_what_it_does_not(parity, tab, tmp_path):
    page = report(parity)
    (meta,) = page.pack.meta["runs"]
    assert "offers no predictors" in meta["skipped"]["predictors"]
    assert "offers no associations" in meta["skipped"]["W_K1"]
    assert meta["memories"] == []
    assert meta["phases"] is None
    opened(tab, page.save(tmp_path / "parity.html"))
    assert tab.locator(".block.memories").count() == 0
    assert "offers no predictors" in tab.inner_text(".block.notes")
    assert "queries are trained" in tab.inner_text("#sequence-0") or "ReLU" in tab.inner_text("#sequence-0")
