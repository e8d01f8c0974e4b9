"""Notebooks are pairs whose stored outputs are those of a run today on what ships, and show without a network."""

import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.browser import launched

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from run_notebooks import FOLDER, NAMES, differences, execute  # noqa: E402  (a script of docs/, which is no package)

RUN_ELSEWHERE = ["ablations", "attention", "heads", "surgery"]
"""Notebooks whose calls are run by other tests too: on the pages of docs/, and tests/heads/test_planted.py."""
OTHERS = [name for name in NAMES if name not in RUN_ELSEWHERE]


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NAMES)
def test_both_halves_of_a_pair_hold_the_same_cells(name):
    text = jupytext.read(FOLDER / f"{name}.md")
    assert [(cell.cell_type, cell.source) for cell in text.cells] == [
        (cell.cell_type, cell.source) for cell in stored(name).cells
    ]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_stored_without_errors(name):
    outputs = [output for cell in stored(name).cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]


def test_the_quickstart_is_one_screen_of_code_without_a_function():
    cells = [cell.source for cell in stored("quickstart").cells if cell.cell_type == "code"]
    assert sum(len(source.splitlines()) for source in cells) < 25
    assert not any("def " in source or "lambda" in source for source in cells)


@pytest.mark.slow
@pytest.mark.loopback  # the kernel is a process that listens there
@pytest.mark.parametrize("names", [OTHERS, pytest.param(RUN_ELSEWHERE, marks=pytest.mark.hard)], ids=" ".join)
def test_a_run_today_shows_what_is_stored(names):
    found = {name: differences(stored(name), notebook) for name, notebook in execute(names)}
    assert list(found) == names
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_changed_number_a_changed_picture_and_a_missing_output_are_noticed():
    text, picture = "   a\n0  0.951", "iVBORw0KGgoAAAANSUhEUgAAAZAAAADICAYAAADGFbfiAAAA"
    old = nbformat.v4.new_notebook(cells=[_showing({"text/plain": text}), _showing({"image/png": picture})])
    assert differences(old, old) == []
    moved = nbformat.v4.new_notebook(cells=[_showing({"text/plain": "   a\n0  0.957"}), old.cells[1]])
    assert len(differences(old, moved)) == 1
    larger = picture[:22] + "AAyAAAAyA" + picture[31:]
    assert len(differences(old, nbformat.v4.new_notebook(cells=[old.cells[0], _showing({"image/png": larger})]))) == 1
    silent = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x"), old.cells[1]])
    assert len(differences(old, silent)) == 1


def _showing(data):
    return nbformat.v4.new_code_cell("x", outputs=[nbformat.v4.new_output("execute_result", data)])


@pytest.mark.slow
def test_its_outputs_show_in_a_browser_without_a_network(tmp_path):
    page_path = tmp_path / "notebook.html"
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(stored("quickstart"))
    page_path.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", encoding="utf-8")
    with launched() as browser:
        tab = browser.new_context(offline=True).new_page()
        tab.goto(page_path.as_uri())
        frame = tab.wait_for_selector("iframe").content_frame()
        frame.get_by_role("tab", name="One head").click()
        frame.wait_for_selector("#heads canvas")
        frame.get_by_role("tab", name="All heads").click()
        assert frame.query_selector("img").evaluate("image => image.complete && image.naturalWidth > 100")
        assert tab.query_selector("img").evaluate("image => image.complete && image.naturalWidth > 100")
