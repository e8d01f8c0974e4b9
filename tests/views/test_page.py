"""The page in a real browser without a network."""

import csv
import gzip
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory.interventions.memory_surgery import edited
from induction_memory.views.page.pack import unpack
from induction_memory.views.run_page import report
from tests.browser import wait_until
from tests.views.page_runs import HOSTILE, decoded, full_run, hostile_run, opened, tab_of

SAME = 2e-5
"""How far the live pass may be from torch with the same weights: float32 added up in another order."""
AXE = gzip.decompress((Path(__file__).parent / "axe" / "axe.min.js.gz").read_bytes()).decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [hostile_run(folder / "simple", learning_rate=0.5), full_run(folder / "full", steps=8)]


@pytest.fixture(scope="module")
def paths(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        "one": report(runs[0], length=16).save(folder / "one.html"),
        "full": report(runs[1], length=16).save(folder / "full.html"),
        "two": report(runs, length=16).save(folder / "two.html"),
    }


@pytest.fixture
def tab(browser):
    page = tab_of(browser)
    yield page
    errors, refused = page.errors, page.refused
    page.context.close()
    assert errors == []
    assert refused == []


def step_of(tab):
    return int(re.search(r"step (\d+)", tab.get_attribute("#slider", "aria-valuetext"))[1])


def view_of(tab, expression):
    """Read off the view of the first run."""
    return tab.evaluate(f"(() => {{ const page = inductionMemory, run = page.runs[0], view = run.view(page.state);"
                        f" return {expression}; }})()")  # fmt: skip


def torch_probabilities(model, tokens, targets):
    q = model(torch.tensor([tokens])).softmax(-1)[0]
    return np.array([q[t, j].item() for t, j in enumerate(targets) if j >= 0])


def test_the_slider_names_stored_steps_and_moves_everything(tab, paths, runs):
    opened(tab, paths["one"])
    assert step_of(tab) == runs[0].steps[-1]
    before = tab.evaluate("document.querySelector('.focus canvas').toDataURL()")
    tab.fill("#slider", "2")
    assert step_of(tab) == runs[0].steps[2]
    assert tab.inner_text(".now") == f"step {runs[0].steps[2]}"
    assert tab.evaluate("document.querySelector('.focus canvas').toDataURL()") != before
    assert f"step {runs[0].steps[2]}:" in tab.inner_text(".attention .readout")
    wait_until(tab, lambda: tab.url.endswith(f"#at={runs[0].steps[2]}"))


def test_keys_move_the_slider_play_and_help(tab, paths, runs):
    steps = runs[0].steps.tolist()
    opened(tab, paths["one"])
    tab.keyboard.press("Home")
    assert step_of(tab) == steps[0]
    tab.keyboard.press("ArrowRight")
    assert step_of(tab) == steps[1]
    tab.keyboard.press("Shift+ArrowRight")
    assert step_of(tab) == steps[min(6, len(steps) - 1)]
    tab.keyboard.press("End")
    assert step_of(tab) == steps[-1]
    tab.keyboard.press("Shift+?")
    assert tab.is_visible("#help")
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#help")
    tab.keyboard.press("Shift+?")
    tab.click("#help-close")
    tab.keyboard.press("Home")
    tab.locator("h1").click()
    tab.keyboard.press(" ")
    assert tab.get_attribute(".play", "aria-label") == "Pause"
    tab.wait_for_selector(f"#slider[aria-valuetext^='step {steps[1]},']")
    tab.keyboard.press(" ")
    assert tab.get_attribute(".play", "aria-label") == "Play"


def test_hovering_a_token_marks_it_everywhere_and_a_click_pins_it(tab, paths):
    opened(tab, paths["one"])
    tab.hover("#token-0-7")
    assert tab.get_attribute("#token-0-7", "aria-selected") == "true"
    name = tab.inner_text("#token-0-7 b")
    assert f"After “{name}” (8)" in tab.inner_text(".said")
    assert "Recalled from: W_K2" in tab.inner_text(".said")
    assert f"query “{name}”, key “{name}”" in tab.inner_text("#w-k2-0 .readout")
    assert f"attended “{name}”, output “{name}”" in tab.inner_text("#w-o2-0 .readout")
    assert "query 8, key 7" in tab.inner_text("#w-k1-0 .readout")
    tab.click("#token-0-7")
    tab.mouse.move(1, 1)
    assert tab.get_attribute("#token-0-7", "aria-selected") == "true"
    wait_until(tab, lambda: "query=7" in tab.url)
    tab.keyboard.press("Escape")
    assert "query=" not in tab.evaluate("(inductionMemory.store.writeHash(), location.hash)")


def test_hovering_a_memory_marks_its_token_in_the_sequence_and_the_attention(tab, paths):
    opened(tab, paths["one"])
    left, cell = tab.evaluate("(() => { const map = inductionMemory.articles[0].all.find(p => p.name === 'W_O2').map;"
                              " return [map.left, map.cell]; })()")  # fmt: skip
    tokens = view_of(tab, "view.sequence.tokens")
    token = tokens[4]
    tab.locator("#w-o2-0 .overlay").hover(position={"x": left + (token + 0.5) * cell, "y": 1.5 * cell})
    last = len(tokens) - 1 - tokens[::-1].index(token)
    assert tab.get_attribute(f"#token-0-{last}", "aria-selected") == "true"
    assert tab.locator(".token.same").count() == tokens.count(token)
    assert f"({last + 1}) attends most to" in tab.inner_text(".attention .readout")


def test_hovering_the_map_reads_out_attention(tab, paths, runs):
    opened(tab, paths["one"])
    box = tab.locator(".focus .overlay").bounding_box()
    left, cell = tab.evaluate("(() => { const map = inductionMemory.articles[0].all.find(p => p.map).map;"
                              " return [map.left, map.cell]; })()")  # fmt: skip
    tab.mouse.move(box["x"] + left + 3.5 * cell, box["y"] + 9.5 * cell)
    said = tab.inner_text(".attention .readout")
    shown = [float(n) / 100 for n in re.findall(r"(\d+\.\d)\s%", said)]
    sequence = view_of(tab, "view.sequence.tokens")
    _, cache = runs[0].model(int(runs[0].steps[-1])).run_with_cache(torch.tensor([sequence]))
    row = cache["blocks.1.attn.hook_pattern"][0, 0, 9]
    assert shown[0] == pytest.approx(row.max().item(), abs=6e-4)
    if len(shown) > 1:
        assert shown[1] == pytest.approx(row[3].item(), abs=6e-4)


def test_stored_predictions_are_the_models_own(tab, paths, runs):
    opened(tab, paths["one"], f"#at={runs[0].steps[3]}&seq=1")
    tokens, targets = view_of(tab, "view.sequence.tokens"), view_of(tab, "view.sequence.targets")
    right = view_of(tab, "[...view.right]")
    expected = torch_probabilities(runs[0].model(int(runs[0].steps[3])), tokens, targets)
    np.testing.assert_allclose(right, expected, atol=1e-5)
    loss = float(tab.inner_text(".losses dd >> nth=0"))
    assert loss == pytest.approx(-np.log(expected).mean(), abs=1e-3)


def test_a_typed_text_is_read_by_the_model(tab, paths, runs):
    text = "ab</script>a<b&a\n"
    opened(tab, paths["one"])
    tab.fill(".typed input", text)
    ids = [list(runs[0].task.vocabulary).index(t) for t in ("a", "b", "</script>", "a", "<", "b", "&", "a")]
    assert view_of(tab, "view.sequence.tokens") == ids
    model = decoded(runs[0], int(runs[0].steps[-1]))
    expected = torch_probabilities(model, ids, [*ids[1:], -1])
    np.testing.assert_allclose(view_of(tab, "[...view.right].slice(0, -1)"), expected, atol=SAME)
    _, cache = model.run_with_cache(torch.tensor([ids]))
    for layer in (0, 1):
        shown = np.array(view_of(tab, f"[...view.map({layer})]")).reshape(8, 8)
        np.testing.assert_allclose(shown, cache[f"blocks.{layer}.attn.hook_pattern"][0, 0].numpy(), atol=SAME)
    assert "weights in 8 bits" in tab.inner_text(".live .note")
    tab.fill(".typed input", "ab€a")
    assert "1 characters outside the vocabulary" in tab.inner_text(".live .note")
    tab.click(".reset")
    assert not view_of(tab, "view.live")


@pytest.mark.parametrize("part", ["L1H1", "L2H1", "W_K1", "W_K2", "W_O2", "W_F"])
def test_a_part_switched_off_is_a_part_ablated_to_zero(tab, paths, runs, part):
    opened(tab, paths["one"])
    tab.locator(".switch", has_text=re.compile(f"^{part}$")).click()
    tokens, targets = view_of(tab, "view.sequence.tokens"), view_of(tab, "view.sequence.targets")
    model = decoded(runs[0], int(runs[0].steps[-1]))
    zero = {"L1H1": "blocks.0.attn.hook_z", "L2H1": "blocks.1.attn.hook_z", "W_O2": "blocks.1.attn.hook_z",
            "W_K1": "blocks.0.attn.hook_k", "W_K2": "blocks.1.attn.hook_k", "W_F": "blocks.1.hook_mlp_out"}  # fmt: skip
    with model.hooks(fwd_hooks=[(zero[part], lambda y, hook: torch.zeros_like(y))]):
        expected = torch_probabilities(model, tokens, targets)
    np.testing.assert_allclose(view_of(tab, "[...view.right]"), expected, atol=SAME)
    assert "loss of the intact model" in tab.inner_text(".losses")
    wait_until(tab, lambda: tab.url.endswith(f"#off={part}"))


@pytest.mark.parametrize(
    ("memory", "pairs"),
    [
        ("W_O2", [("a", "a"), ("b", "&")]),
        ("W_K2", [("b", "b"), ("a", "<")]),
        ("W_K1", [("3", "4")]),
        ("W_F", [("a", "b")]),
    ],
)
def test_erasing_is_surgery(tab, paths, runs, memory, pairs):
    run = runs[0]
    number = (lambda name: int(name) - 1) if memory == "W_K1" else list(run.task.vocabulary).index
    keys = memory.startswith("W_K")
    cells = [(number(b), number(a)) if keys else (number(a), number(b)) for a, b in pairs]
    state = ",".join(f"{memory}%7C0%7C{row}%7C{column}" for row, column in cells)
    opened(tab, paths["one"], f"#erased={state}")
    tokens, targets = view_of(tab, "view.sequence.tokens"), view_of(tab, "view.sequence.targets")
    model = decoded(run, int(run.steps[-1]))
    with edited(model, run.task, memory=memory, erase=[f"{a}->{b}" for a, b in pairs]):
        expected = torch_probabilities(model, tokens, targets)
    np.testing.assert_allclose(view_of(tab, "[...view.right]"), expected, atol=SAME)
    facts = f"run.meta.memories.find(m => m.memory === '{memory}')"
    rows, columns, first, scores = view_of(
        tab, f"(m => [m.rows, m.columns, m.first, [...run.table(m, view)]])({facts})"
    )
    table = np.array(scores).reshape(rows, columns)
    for row, column in cells:
        assert table[row - first, column] == pytest.approx(0, abs=1e-3)
    chips = tab.locator(".erased .chip")
    assert chips.count() == len(pairs)
    chips.first.click()
    assert tab.locator(".erased .chip").count() == len(pairs) - 1


def test_the_live_pass_keeps_the_tolerance_that_the_page_states(tab, paths, runs):
    step = int(runs[0].steps[-2])
    opened(tab, paths["one"], f"#at={step}")
    stated = view_of(tab, "run.meta.live.tolerance")
    for row in range(3):
        tokens = view_of(tab, f"run.meta.sequences[{row}].tokens")
        _, cache = runs[0].model(step).run_with_cache(torch.tensor([tokens]))
        for layer in (0, 1):
            shown = view_of(tab, f"[...run.model.forward(view.index, {tokens}).maps[{layer}]]")
            expected = cache[f"blocks.{layer}.attn.hook_pattern"][0, 0].numpy()
            difference = np.abs(np.array(shown).reshape(expected.shape) - expected)
            assert difference.max() <= stated["attention_max"] + SAME


@pytest.mark.parametrize("memory", ["W_K2", "W_O2", "W_F"])
def test_the_picture_of_a_memory_has_inputs_as_columns_and_outputs_as_rows(tab, paths, runs, memory):
    opened(tab, paths["one"])
    width, pixels = tab.evaluate(
        f"(() => {{ const canvas = inductionMemory.articles[0].all.find(p => p.name === '{memory}').map.canvas;"
        " const { width, height } = canvas;"
        " return [width, [...canvas.getContext('2d').getImageData(0, 0, width, height).data]]; })()"
    )
    darkness = -np.array(pixels, dtype=float).reshape(-1, width, 4)[..., :3].sum(-1)
    scores = im.source.select(runs[0], step="last").stack.association(memory).scores  # [..., output, input]
    scores = scores.flatten(0, -3)[0].abs().numpy()
    assert np.corrcoef(darkness.ravel(), scores.ravel())[0, 1] > 0.8
    assert np.corrcoef(darkness.ravel(), scores.T.ravel())[0, 1] < 0.8


def test_a_cell_is_chosen_by_its_input_across_and_its_output_down_and_erased_by_hand(tab, paths):
    opened(tab, paths["one"])
    left, cell = tab.evaluate("(() => { const map = inductionMemory.articles[0].all.find(p => p.name === 'W_O2').map;"
                              " return [map.left, map.cell]; })()")  # fmt: skip
    overlay = tab.locator("#w-o2-0 .overlay")
    overlay.click(position={"x": left + 2.5 * cell, "y": 4.5 * cell})
    tab.mouse.move(1, 1)
    tab.click("#w-o2-0 .erase")
    assert tab.locator(".erased .chip").count() == 1
    assert view_of(tab, "view.erased") == [{"memory": "W_O2", "index": 0, "row": 2, "column": 4}]


def test_a_link_opens_the_same_view(tab, paths, runs):
    step = int(runs[0].steps[1])
    opened(tab, paths["one"], f"#at={step}&head=L1H1&query=5&off=W_F&sort=frequency&scale=log&theme=dark&text=abab%20a")
    assert step_of(tab) == step
    assert tab.get_attribute(".thumb >> nth=0", "aria-pressed") == "true"
    assert tab.get_attribute("#token-0-5", "aria-selected") == "true"
    assert not tab.locator(".switch", has_text="W_F").locator("input").is_checked()
    assert tab.input_value(".typed input") == "abab a"
    assert tab.get_attribute("html", "data-theme") == "dark"
    tab.evaluate("inductionMemory.store.writeHash()")
    again = tab.url
    other = tab.context.new_page()
    opened(other, Path(paths["one"]), "#" + again.partition("#")[2])
    assert other.evaluate("inductionMemory.state") == tab.evaluate("inductionMemory.state")


def test_a_broken_link_is_not_a_broken_page(tab, paths):
    opened(tab, paths["one"], "#at=abc&seq=99&query=-%&off=NOPE&erased=W_O2%7C9%7C1%7C1&head=L9H9&nonsense")
    assert step_of(tab) >= 0


def download(tab, selector):
    with tab.expect_download() as waiting:
        tab.click(selector)
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


PANELS = [
    "sequence",
    "attention",
    "shares",
    "loss",
    "accuracy",
    "recall",
    "kl",
    "w-k1",
    "w-k2",
    "w-o2",
    "w-f",
    "causes",
]


@pytest.mark.parametrize("panel", PANELS)
def test_every_panel_exports_png_svg_csv_and_python(tab, paths, panel):
    opened(tab, paths["one"])
    name, png = download(tab, f"#{panel}-0 .exports button >> nth=0")
    assert name.endswith(".png")
    assert png.startswith(b"\x89PNG")
    assert len(png) > 1000
    name, picture = download(tab, f"#{panel}-0 .exports button >> nth=1")
    assert name.endswith(".svg")
    assert picture.startswith(b"<svg")
    assert b"var(" not in picture
    name, table = download(tab, f"#{panel}-0 .exports button >> nth=2")
    rows = list(csv.reader(io.StringIO(table.decode())))
    assert len({len(row) for row in rows}) == 1
    assert len(rows) > 2
    tab.click(f"#{panel}-0 .exports button >> nth=3")
    code = tab.inner_text(f"#{panel}-0 .code")
    assert code.startswith("import induction_memory as im")
    assert "{" not in code


def test_csv_files_hold_the_tables_numbers(tab, paths, runs):
    opened(tab, paths["one"])
    _, table = download(tab, "#w-o2-0 .exports button >> nth=2")
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    expected = im.probes.score_matrix(runs[0], "W_O2", step=int(runs[0].steps[-1]))
    shown = np.array([float(row["score"]) for row in rows]).reshape(expected.shape)
    np.testing.assert_allclose(shown, expected.to_numpy(), atol=np.ptp(expected.to_numpy()) / 30000)
    assert [row["input"] for row in rows[:: len(HOSTILE)]] == list(runs[0].task.vocabulary)
    _, table = download(tab, "#recall-0 .exports button >> nth=2")
    recall = im.probes.table(runs[0], ["W_O2"])
    values = [float(r["value"]) for r in csv.DictReader(io.StringIO(table.decode())) if r["probe"] == "W_O2"]
    assert values == recall["value"].tolist()


def test_numbers_beside_the_curves_are_those_of_the_step(tab, paths, runs):
    step = int(runs[0].steps[2])
    opened(tab, paths["one"], f"#at={step}")
    shown = dict(zip(tab.locator("#recall-0 .legend span").all_inner_texts(),
                     tab.locator("#recall-0 .legend b").all_inner_texts(), strict=True))  # fmt: skip
    table = im.probes.table(runs[0], ["W_O2", "W_K2"]).set_index(["probe", "step"])["value"]
    for name in ("W_O2", "W_K2"):
        assert shown[name] == f"{table[name, step]:.3f}"
    causes = unpack(report(runs[0], length=16).pack.blob())[0]["runs"][0]["causes"]
    at = causes["steps"].index(step)
    lost = causes["without"]["in_context_loss"][at][0] - causes["intact"]["in_context_loss"][at]
    text = tab.locator("#causes-0 .parts >> nth=0").locator(".value").first.text_content()
    assert float(text.replace("−", "-")) == pytest.approx(lost, abs=6e-4)


def test_dragging_on_a_curve_moves_the_slider(tab, paths, runs):
    opened(tab, paths["one"])
    tab.locator("#recall-0 .chart").evaluate("chart => chart.scrollIntoView({block: 'center'})")
    box = tab.locator("#recall-0 .chart").bounding_box()
    tab.mouse.move(box["x"] + box["width"] - 10, box["y"] + 50)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 34, box["y"] + 50)
    tab.mouse.up()
    assert step_of(tab) == runs[0].steps[0]


def test_two_runs_stand_side_by_side_under_one_slider(tab, paths, runs):
    opened(tab, paths["two"])
    assert tab.locator("article.run").count() == 2
    first, second = (tab.locator("article.run").nth(i).bounding_box() for i in (0, 1))
    assert abs(first["y"] - second["y"]) < 2
    assert second["x"] > first["x"] + first["width"] - 1
    shown = re.findall(r"step (\d+)", tab.get_attribute("#slider", "aria-valuetext"))
    assert [int(s) for s in shown] == [runs[0].steps[-1], runs[1].steps[-1]]
    tab.keyboard.press("Home")
    assert step_of(tab) == 0
    tab.select_option(".transport select", "birth")
    tab.keyboard.press("End")
    shown = re.findall(r"step (\d+)", tab.get_attribute("#slider", "aria-valuetext"))
    assert all(int(s) in run.steps for s, run in zip(shown, runs, strict=False))


def test_a_model_that_cannot_run_in_the_page_shows_stored_maps(tab, paths):
    opened(tab, paths["full"])
    assert tab.locator(".thumb").count() == 4
    assert "because the model has ReLU feed-forwards" in tab.inner_text("#sequence-0")
    assert tab.locator(".typed").count() == 0
    tab.select_option("#w-k2-0 select", "1")


def test_hostile_tokens_are_text(tab, paths, runs):
    opened(tab, paths["one"])
    assert tab.locator("main img").count() == 0
    shown = tab.locator("#w-o2-0 .labels text").all_text_contents()
    from induction_memory.shown_tokens import visible

    names = {visible(token) for token in runs[0].task.vocabulary}
    assert set(shown) == {name if len(name) <= 4 else f"{name[:3]}…" for name in names}
    tab.click("#w-o2-0 summary")
    assert "<img src=x onerror=alert(1)>" in tab.inner_text("#w-o2-0 table")
    tab.fill(".typed input", "<img src=x onerror=alert(1)></script>a")
    assert tab.locator(".strip b").all_text_contents() == ["<img␣src=x␣onerror=alert(1)>", "</script>", "a"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("which", ["one", "full", "two"])
def test_axe_finds_nothing_to_mend(browser, paths, which, scheme):
    tab = opened(tab_of(browser, color_scheme=scheme, bypass_csp=True), paths[which])
    tab.click("#sequence-0 summary")
    tab.click("#sequence-0 .exports button >> nth=3")
    tab.evaluate(AXE)
    found = tab.evaluate("axe.run().then(result => result.violations.map(v => [v.id, v.nodes.map(n => n.html)]))")
    tab.context.close()
    assert found == []


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("which", ["one", "full", "two"])
def test_nothing_is_wider_than_the_window(browser, paths, which, width):
    tab = opened(tab_of(browser, viewport={"width": width, "height": 800}), paths[which])
    for table in tab.locator("details.numbers summary").all():
        table.click()
    for code in tab.locator(".exports button >> nth=3").all():
        code.click()
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.panel')].filter(p => p.scrollWidth > p.clientWidth).map(p => p.id)"
    assert tab.evaluate(wider) == []
    tab.context.close()


def test_print_shows_five_steps(tab, paths):
    opened(tab, paths["one"])
    tab.emulate_media(media="print")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.locator(".paper-step").count() == 5
    assert tab.locator(".paper-step canvas").first.is_visible()
    assert not tab.locator(".transport").is_visible()
    assert len(tab.pdf()) > 20000


@pytest.mark.slow
def test_the_page_asks_for_no_eval_and_no_inline_handlers(paths):
    source = paths["one"].read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', source)[1]
    assert "default-src &#x27;none&#x27;" in policy
    assert "unsafe" not in policy
    assert " onclick=" not in source.partition("<script")[0]
    assert "style=" not in source.partition("<script")[0]


def test_a_notebook_shows_the_page_after_nbconvert(tab, runs, tmp_path):
    from nbconvert import HTMLExporter

    shown = report(runs[0], length=16)._repr_html_()
    output = nbformat.v4.new_output("display_data", data={"text/html": shown, "text/plain": "Report"})
    cell = nbformat.v4.new_code_cell("im.report(run)", outputs=[output])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    path = tmp_path / "notebook.html"
    path.write_text(HTMLExporter(template_name="basic").from_notebook_node(notebook)[0], encoding="utf-8")
    tab.goto(path.as_uri())
    frame = tab.query_selector("iframe").content_frame()
    frame.wait_for_selector("html[data-ready]")
    frame.fill("#slider", "1")
    assert frame.get_attribute("#slider", "aria-valuetext").startswith(f"step {runs[0].steps[1]},")


def test_the_widgets_step_follows_the_page_and_moves_it(tab, runs, tmp_path):
    from induction_memory.views.widget import SCRIPT

    made = report(runs[0], length=16)
    widget = made.widget()
    assert widget.step == runs[0].steps[-1]
    host = tmp_path / "host.html"
    host.write_text("<!doctype html><meta charset=utf-8><div id=el></div>", encoding="utf-8")
    tab.goto(host.as_uri())
    stub = """
    (page, step) => { const listeners = [], values = { page, step, height: 700 };
      window.model = { get: k => values[k], on: (_, f) => listeners.push(f), save_changes: () => {},
        set: (k, v) => { values[k] = v; }, fromKernel: v => { values.step = v; listeners.forEach(f => f()); } };
      render({ model, el: document.getElementById("el") }); }"""
    tab.evaluate(f"(args) => {{ {SCRIPT.replace('export default { render };', '')}; ({stub})(...args); }}",
                 [widget.page, int(runs[0].steps[2])])  # fmt: skip
    frame = tab.query_selector("iframe").content_frame()
    frame.wait_for_selector(f"#slider[aria-valuetext^='step {runs[0].steps[2]},']")
    frame.fill("#slider", "1")
    tab.wait_for_function(f"() => model.get('step') === {runs[0].steps[1]}")
    tab.evaluate(f"model.fromKernel({runs[0].steps[3]})")
    frame.wait_for_selector(f"#slider[aria-valuetext^='step {runs[0].steps[3]},']")
