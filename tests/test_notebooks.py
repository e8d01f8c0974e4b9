"""Notebooks are pairs, run from top to bottom, and show what they show without a network."""

import os
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest
from nbconvert import HTMLExporter

from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.task.bigrams import BigramTask
from induction_memory.training.run import start
from tests.browser import launched

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.md"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder in which the shipped trajectory's name stands for a tiny one."""
    folder = tmp_path_factory.mktemp("notebooks")
    config = RunConfig(
        BigramTask(k=3, length=40),
        ModelConfig(d_model=16, n_ctx=40),
        TrainConfig(steps=2, batch_size=8, full_metrics_every=2),
    )
    start(config, folder / "induction-alone", quiet=True)
    return folder


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request, folder):
    notebook = jupytext.read(request.param)
    nbformat.validator.normalize(notebook)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    client.execute(env=os.environ | {"PYTHONPATH": str(ROOT)})
    return notebook


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_both_halves_of_a_pair_hold_the_same_cells(path):
    text, notebook = (jupytext.read(half) for half in (path, path.with_suffix(".ipynb")))
    assert [(cell.cell_type, cell.source) for cell in text.cells] == [
        (cell.cell_type, cell.source) for cell in notebook.cells
    ]


def test_the_quickstart_is_one_screen_of_code_without_a_function():
    cells = [cell.source for cell in jupytext.read(NOTEBOOKS[0]).cells if cell.cell_type == "code"]
    assert NOTEBOOKS[0].stem == "quickstart"
    assert sum(len(source.splitlines()) for source in cells) < 25
    assert not any("def " in source or "lambda" in source for source in cells)


def test_every_cell_that_shows_something_does(executed):
    assert executed.cells
    shown = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    kinds = {kind for output in shown if "data" in output for kind in output.data}
    assert {"text/html", "image/png"} <= kinds


def test_its_outputs_show_in_a_browser_without_a_network(executed, tmp_path):
    page_path = tmp_path / "notebook.html"
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(executed)
    page_path.write_text(f"<!doctype html><meta charset=utf-8><body>{body}", encoding="utf-8")
    with launched() as browser:
        tab = browser.new_context(offline=True).new_page()
        tab.goto(page_path.as_uri())
        frame = tab.wait_for_selector("iframe").content_frame()
        frame.wait_for_selector("#heads canvas")
        assert frame.query_selector("img").evaluate("image => image.complete && image.naturalWidth > 100")
        assert tab.query_selector("img").evaluate("image => image.complete && image.naturalWidth > 100")
