"""The picture of a calibration sweep shows what the table says, and its script writes both."""

import math
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analyses.learning_coefficient import calibration_figure
from induction_memory.errors import InputError
from induction_memory.training.run import start
from tests.tiny_runs import tiny

COLUMNS = ["n_beta", "step_size", "value", "value_se", "note", "plateau"]


def test_lines_markers_and_crosses_are_the_values_the_plateau_and_the_diverged_settings():
    rows = [
        (10, 1e-3, 2.1, 0.1, "", True),
        (10, 1e-4, 2.0, 0.1, "", False),
        (100, 1e-4, 5.0, 0.2, "", False),
        (100, 1e-3, math.nan, math.nan, "diverged", False),
    ]
    (axes,) = calibration_figure(pd.DataFrame(rows, columns=COLUMNS), "W_K2").axes
    assert axes.get_title() == "W_K2"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["n_beta 10", "n_beta 100"]
    full = [line for line in axes.lines if line.get_marker() == "o" and line.get_markerfacecolor() != "white"]
    empty = [line for line in axes.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "white"]
    assert [np.asarray(line.get_ydata()).tolist() for line in full] == [[2.1], []]
    assert [np.asarray(line.get_ydata()).tolist() for line in empty] == [[2.0], [5.0]]
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert [np.asarray(line.get_xdata()).tolist() for line in crosses] == [[], [1e-3]]
    with pytest.raises(InputError, match="table: expected at least one setting"):
        calibration_figure(pd.DataFrame([], columns=COLUMNS))


@pytest.mark.slow
def test_the_script_writes_the_picture_and_its_numbers(tmp_path):
    start(tiny(), tmp_path / "run", progress=False)
    script = runpy.run_path(str(Path(__file__).parents[2] / "analyses" / "learning_coefficient.py"))
    script["main"](
        str(tmp_path / "run"), n_betas=(1.0, 2.0), step_sizes=(2e-4, 1e-4), burn_in=0, draws=2, chains=2, docs=tmp_path
    )
    assert (tmp_path / "learning-coefficient.png").stat().st_size > 500
    table = pd.read_csv(tmp_path / "learning-coefficient.csv")
    assert table.columns.tolist() == COLUMNS
    assert table["value"].notna().all()
