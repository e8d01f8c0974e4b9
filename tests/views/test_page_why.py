"""The panel "Why" in a browser: its terms are those of Python, and sum to the page's own logits whatever is changed."""

import pytest
import torch

from induction_memory.probes.activations import Activations
from induction_memory.probes.why import Streams
from induction_memory.source.sources import select
from induction_memory.views.run_page import report
from tests.views.page_runs import decoded, full_run, hostile_run, opened, tab_of

PANEL = "inductionMemory.articles[0].all.find((panel) => panel.panel?.id === 'why-0')"
SAME = 1e-4
DIFFERENCES = f"""() => {{ const page = inductionMemory, run = page.runs[0], panel = {PANEL}, m = run.outputSize;
  return run.meta.steps.map((step) => {{ page.store.set({{ at: step }}); const view = run.view(page.state);
    const {{ logProbabilities: logs }} = run.model.forward(view.index, view.sequence.tokens, view);
    return [0, Math.min(5, view.sequence.tokens.length - 1), view.sequence.tokens.length - 1].map((t) => {{
      const [a, b] = [panel.explain(view, t, 1).logit, panel.explain(view, t, 2).logit];
      return Math.abs(a - b - (logs[t * m + 1] - logs[t * m + 2])); }}); }}).flat(); }}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("runs") / "simple", learning_rate=0.5)


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    return report(run, length=16, sequences=1, causal_steps=1).save(tmp_path_factory.mktemp("pages") / "why.html")


@pytest.fixture
def tab(browser):
    page = tab_of(browser)
    yield page
    errors = page.errors
    page.context.close()
    assert errors == []


def test_a_click_on_a_token_explains_it_with_the_terms_of_python(tab, path, run):
    opened(tab, path)
    tab.click("#token-0-9")
    found = tab.evaluate(f"({{ ...{PANEL}.found, tokens: {PANEL}.view.sequence.tokens }})")
    assert found["query"] == 9
    model, tokens = decoded(run, int(run.steps[-1])), torch.tensor([[*found["tokens"], 0]])
    streams = Streams(Activations(select(model, batch=tokens).at()))
    at, y = torch.tensor([9]), torch.tensor([found["y"]])
    page = {(tuple(term["path"]), term["part"], term["at"]): term["value"] for term in found["terms"]}
    assert len(page) == len(found["terms"])
    with torch.no_grad():
        for leaf in streams.logits(at, y):
            path_, values = tuple("W_F" if one == "FF2" else one for one in leaf.path), leaf.value[0].tolist()
            places = range(len(values)) if len(values) > 1 else [9]
            for s, value in zip(places, values, strict=True):
                if leaf.part != "bias":
                    assert page.pop((path_, leaf.part, s), 0.0) == pytest.approx(value, abs=SAME)
        assert max(map(abs, page.values()), default=0.0) == 0.0
        second = found["heads"][0]
        assert second["head"] == "L2H1"
        own = sum(
            sign * leaf.value.sum().item()
            for s, sign in ((second["key"], 1), (second["rival"], -1))
            for part, leaf in streams.scores("L2H1", at, torch.tensor([s]), ["embed", "pos"])
            if leaf.part != "bias"
        )
    assert sum(term["value"] for term in second["terms"]) == pytest.approx(own, abs=SAME)
    name = tab.inner_text("#token-0-9 b")
    assert f"after “{name}” (10)" in tab.inner_text(".panel.why .readout")


def test_the_terms_sum_to_the_page_s_own_logits_at_every_step_typed_switched_off_and_erased(tab, path):
    opened(tab, path)
    for change in (
        "{}",
        "{ text: 'ab</script>ab<a' }",
        "{ text: '', off: ['W_O2'] }",
        "{ off: ['L1H1', 'W_F'] }",
        "{ off: ['W_K2'], text: 'abab' }",
        "{ off: [], text: '', erased: ['W_O2|0|3|3', 'W_K1|0|4|3', 'W_K2|0|1|1'] }",
    ):
        tab.evaluate(f"inductionMemory.store.set({change})")
        assert max(tab.evaluate(DIFFERENCES)) < SAME


def test_the_slider_and_the_chosen_output_change_the_picture(tab, path, run):
    opened(tab, path)
    before = tab.inner_html(".panel.why .body")
    tab.fill("#slider", "0")
    assert tab.inner_html(".panel.why .body") != before
    tab.fill("#slider", str(len(run.steps) - 1))
    assert tab.inner_html(".panel.why .body") == before
    tab.select_option(".panel.why select", "predicted")
    most = tab.evaluate(f"inductionMemory.runs[0].view(inductionMemory.state).likely({PANEL}.found.query)[0][0]")
    assert tab.evaluate(f"{PANEL}.found.y") == most
    tab.click(".panel.why .exports >> text=Python")
    assert "im.why(run, step=" in tab.inner_text(".panel.why .code")
    tab.evaluate("inductionMemory.store.set({ text: 'ab<ab' })")
    assert tab.locator(".panel.why .why-line text").count() > 2


def test_with_everything_off_no_head_is_named(tab, path):
    opened(tab, path)
    tab.evaluate("inductionMemory.store.set({ off: ['L1H1', 'L2H1'] })")
    assert "no head is on" in tab.inner_text(".panel.why .readout")


def test_a_page_that_cannot_run_its_model_has_no_such_panel(tab, tmp_path):
    page = report(full_run(tmp_path / "full", steps=2), length=8, sequences=1, causal_steps=1).save(
        tmp_path / "full.html"
    )
    opened(tab, page)
    assert tab.locator(".panel.why").count() == 0
