"""A sweep on one page: a row per run, links that lead somewhere, and nothing that a name can break."""

import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.sweep import page, table
from induction_memory.training.run import start
from tests.tiny_runs import tiny
from tests.views.page_runs import tab_of

HOSTILE = "<img src=x onerror=alert(1)>&\"'"


class Reader(HTMLParser):
    """Counts tags, and collects names and the links to them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.ids, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        given = dict(attrs)
        assert not any(name.startswith("on") or name == "style" for name in given), given
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two finished runs that differ in a setting, one under a hostile name, and one that is damaged."""
    place = tmp_path_factory.mktemp("sweeps") / "sizes"
    start(tiny(learning_rate=0.1), place / "slow", progress=False)
    start(tiny(learning_rate=0.3), place / HOSTILE, progress=False)
    shutil.copytree(place / "slow", place / "torn")
    (place / "torn" / "manifest.json").write_text("{")
    return place


def test_every_run_has_a_row_its_settings_its_results_and_curves(folder):
    text, rows = page(folder).html(), table(folder)
    found = Reader(text)
    assert len([name for name in found.ids if name.startswith("row-")]) == len(rows) == 3
    assert found.tags.count("polyline") == 3 * 2 * 2  # loss and accuracy of two runs: together, in the table, below
    assert {link[1:] for link in found.links} <= {*found.ids}
    assert "train.learning_rate" in text
    shown = re.sub(r"<[^>]*>", " ", text)
    assert "a file that cannot be read" in shown
    finished = rows[rows["state"] == "finished"]
    for value in finished["loss"]:
        assert f"{value:.3g}" in shown


def test_runs_that_differ_in_their_seed_have_a_mean_and_a_spread(tmp_path):
    for seed in (11, 12, 13):
        start(tiny(init_seed=seed), tmp_path / f"seed-{seed}", progress=False)
    text = page(tmp_path).html()
    ends = [im.load(tmp_path / f"seed-{seed}").metrics["loss"].iloc[-1] for seed in (11, 12, 13)]
    assert f"{np.mean(ends):.3g} ± {np.std(ends, ddof=1):.3g}" in text
    assert text.count('class="loss mean"') == text.count('class="loss band"') == 1
    assert text.count('class="loss run"') == 2 * 3


def test_a_name_breaks_nothing_and_the_policy_admits_the_style_alone(folder, tmp_path):
    text = page(folder).html()
    found = Reader(text)
    assert "img" not in found.tags
    assert "script" not in found.tags
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")
    assert page(folder).save(tmp_path / "x.html").read_text(encoding="utf-8") == text
    with pytest.raises(InputError, match=r"out: expected a file ending in \.html"):
        page(folder).save(tmp_path / "x.pdf")


def test_a_browser_shows_it_without_a_network_or_an_error(folder, tmp_path, browser):
    tab = tab_of(browser)
    tab.goto(page(folder).save(tmp_path / "x.html").as_uri())
    assert tab.locator("tbody tr").count() == 1 + 3  # all runs together, and one each
    assert tab.evaluate("getComputedStyle(document.querySelector('.sweep td')).borderBottomStyle") == "solid"
    tab.locator("tbody a").first.click()
    assert "#run-0" in tab.url
    assert (tab.errors, tab.refused) == ([], [])
