"""The page of a series in a browser: a slider over its checkpoints, which shows the numbers of each."""

import numpy as np
import pytest

from induction_memory.trajectory.series import revisions
from induction_memory.views.run_page import STEPS, chosen_steps, series_report
from tests.trajectory.series import write_series
from tests.views.page_runs import tab_of


@pytest.mark.slow
def test_the_slider_shows_the_maps_and_numbers_of_one_checkpoint(browser, tmp_path):
    series = revisions(write_series("gpt2", tmp_path / "series", [0, 100, 200]))
    page = series_report(series).save(tmp_path / "page.html")
    tab = tab_of(browser)
    tab.goto(page.as_uri())
    assert tab.get_attribute("#step", "aria-valuetext") == "step 200"
    seen = []
    for _ in range(3):
        visible = [part for part in tab.query_selector_all(".at-step") if part.is_visible()]
        assert len(visible) == 1
        assert visible[0].query_selector("img").evaluate("image => image.naturalWidth") > 100
        rows = visible[0].query_selector_all("tr")
        assert rows[0].query_selector("th").inner_text() == "head"
        assert len(rows) == 5
        seen.append((tab.inner_text("#step-said"), rows[1].inner_text()))
        tab.press("#step", "ArrowLeft")
    assert [said for said, _ in seen] == ["step 200", "step 100", "step 0"]
    assert len({row for _, row in seen}) == 3
    assert tab.errors == []
    tab.context.close()


def test_a_long_series_has_a_slider_of_some_steps():
    found = chosen_steps(np.arange(0, 1000, 5))
    assert (len(found), found[0], found[-1]) == (STEPS, 0, 995)
