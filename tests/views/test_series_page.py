"""The page of sources whose task is not known: series of checkpoints that others trained, and imported runs."""

import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError
from induction_memory.trajectory.series import revisions
from induction_memory.views.page.pack import unpack
from induction_memory.views.page.sequences import renumbered
from induction_memory.views.run_page import MOST_CHECKPOINTS, report
from tests.trajectory.series import write_series
from tests.views.page_runs import opened, tab_of

STEPS = [0, 100, 200]


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    return revisions(write_series("gpt2", tmp_path_factory.mktemp("series") / "others", STEPS))


@pytest.fixture(scope="module")
def page(series):
    return report(series, sequences=2, length=24, causal_steps=2)


def test_the_numbers_of_a_series_are_those_of_the_public_functions(series, page):
    meta, arrays = unpack(page.pack.blob())
    (shown,) = meta["runs"]
    batch = im.source.select(series, sequences=16).batch
    assert shown["steps"] == STEPS
    assert shown["heads"] == ["L1H1", "L1H2", "L2H1", "L2H2"]
    curves = {(curve["name"], curve["head"]): curve for curve in shown["curves"]}
    measured = im.probes.table(series, ["loss_in_context", "repeated_induction2"], batch=batch)
    for (name, head), rows in measured.groupby(["probe", "head"]):
        assert curves[name, head]["values"] == rows["value"].tolist()
    assert shown["causes"]["steps"] == [0, 200]
    lost = im.ablate(series, batch, heads="all", step=200).set_index("component")["in_context_loss"]
    without = dict(zip(shown["causes"]["parts"], shown["causes"]["without"]["in_context_loss"][-1], strict=True))
    assert without["L2H1"] == pytest.approx(lost["L2H1"])
    assert set(without) == {*shown["heads"], "FF1", "FF2"}
    view = im.attention(series, step=100, batch=batch, row=shown["sequences"][0]["row"], length=24)
    q, k = np.tril_indices(24)
    np.testing.assert_allclose(arrays["0 attention"][1, 0], view.patterns[0][:, q, k], atol=1 / 65535)


def test_what_a_series_does_not_offer_is_left_out_with_its_reason(page):
    (shown,) = page.pack.meta["runs"]
    assert shown["memories"] == shown["births"] == []
    assert shown["live"] is None
    assert set(shown["skipped"]) == {"memories", "recall", "loss and accuracy in training", "distances to predictors"}
    assert all(reason.startswith("the task is not known") for reason in shown["skipped"].values())
    assert shown["files"] == ["No duplicates, gaps, damage or jumps in the files of its checkpoints."]


def test_every_line_of_python_runs(page):
    (shown,) = page.pack.meta["runs"]
    assert {curve["group"] for curve in shown["curves"]} <= set(shown["snippets"])
    for code in shown["snippets"].values():
        for name, value in {"step": 200, "row": 0, "query": 3}.items():
            code = code.replace(f"{{{name}}}", str(value))
        exec(code, {})


def test_only_the_tokens_that_are_shown_have_a_name():
    facts = [{"tokens": [40_000, 7, 7], "targets": [7, -1, 9]}]
    used, likely = renumbered(facts, np.array([[[[9, 50_000]]]]))
    assert used.tolist() == [7, 9, 40_000, 50_000]
    assert facts == [{"tokens": [2, 0, 0], "targets": [0, -1, 1]}]
    assert likely.tolist() == [[[[1, 3]]]]


def test_a_long_series_has_a_slider_of_some_checkpoints(monkeypatch, series):
    monkeypatch.setattr(type(series), "choose", lambda self, step: list(range(0, 1000, 5)))
    shown = []

    def gather(source, steps, at, **how):
        shown.extend(steps)
        raise RuntimeError("enough")

    monkeypatch.setattr("induction_memory.views.run_page.gather", gather)
    with pytest.raises(RuntimeError, match="enough"):
        report(series)
    assert (len(shown), shown[0], shown[-1]) == (MOST_CHECKPOINTS, 0, 995)


def test_pairs_of_steps_and_models_cannot_be_read_again():
    model = im.load("induction-small").model(600)
    with pytest.raises(InputError, match="checkpoints on the disk"):
        report(revisions([(0, model)]))


def test_a_run_without_its_task_has_the_same_page(tmp_path):
    shipped = im.load("induction-small")
    for step in (0, 600):
        torch.save(shipped.model(step).state_dict(), tmp_path / f"model_{step}.pt")
    run = im.load(tmp_path, model=shipped.model_config)
    assert run.task is None
    (shown,) = report(run, sequences=1, length=16, causal_steps=1).pack.meta["runs"]
    assert shown["about"].startswith(
        "Simplified model: 2 layers of one head, d = 128, no feed-forward. Its task is not"
    )
    assert shown["files"] == []
    assert "W_K1" in shown["causes"]["parts"]
    assert len(shown["vocabulary"]) <= 65


@pytest.mark.slow
def test_the_slider_shows_each_checkpoint_in_a_browser(browser, page, tmp_path):
    tab = tab_of(browser)
    opened(tab, page.save(tmp_path / "page.html"))
    assert tab.get_attribute("#slider", "aria-valuetext").startswith("step 200,")
    seen = set()
    for step in reversed(STEPS):
        assert tab.inner_text(".now") == f"step {step}"
        seen.add(tab.evaluate("document.querySelector('.focus canvas').toDataURL()"))
        tab.keyboard.press("ArrowLeft")
    assert len(seen) == 3
    for panel in ("loss", "accuracy", "previous", "induction"):
        assert tab.locator(f"#{panel}-0 .legend li").count() in (2, 4)
    assert "In the second half" in tab.inner_text("#causes-0")
    assert "does not run this model, because the task is not known" in tab.inner_text("#sequence-0")
    assert "Not shown: memories" in tab.inner_text(".block.notes")
    assert tab.locator(".block.memories").count() == 0
    assert tab.errors == tab.refused == []
    tab.context.close()
