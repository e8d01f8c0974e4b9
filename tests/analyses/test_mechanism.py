"""Drawings of the mechanism: what is in the table is what is drawn."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.patches import FancyArrowPatch

from analyses.arbitration import LINES, arbitration_figure
from analyses.superposition import superposition_figure
from induction_memory.errors import InputError


def test_shares_are_drawn_by_question_and_rank():
    rows = [(s, q, r, 0.1 * s + i, 0.01) for s in (0, 5) for i, (q, r) in enumerate([*LINES, ("copying", "0")])]
    table = pd.DataFrame(rows, columns=["step", "question", "rank", "value", "value_se"])
    (axes,) = arbitration_figure({"run": table}).axes
    assert axes.get_title() == "run"
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
    assert drawn == [pytest.approx([i, 0.5 + i]) for i in range(len(LINES))]
    with pytest.raises(InputError, match="tables: expected at least one run"):
        arbitration_figure({})


def test_boxes_and_arrows_are_those_above_the_least():
    streams = {0: {"w_E(a)": 1.0, "p(0)": 1.0}, 1: {"w_E(a)": 1.0, "p(0)": 1.0, "w_1(b)": 0.9, "w_1(c)": 0.1}}
    rows = [(layer, 0, name, value) for layer, stream in streams.items() for name, value in stream.items()]
    table = pd.DataFrame(rows, columns=["layer", "position", "embedding", "coefficient"])
    pattern = torch.tensor([[1.0, 0.0], [0.9, 0.1]])
    (axes,) = superposition_figure(table, [pattern], "ab", "'b'").axes
    boxes = [text.get_text() for text in axes.texts if text.get_text()]
    assert boxes == ["w_E(a)  1.00", "p(0)  1.00", "w_1(b)  0.90", "w_E(a)  1.00", "p(0)  1.00"]
    arrows = [text for text in axes.texts if isinstance(getattr(text, "arrow_patch", None), FancyArrowPatch)]
    assert len(arrows) == 2
    with pytest.raises(InputError, match="attention: expected one pattern per layer"):
        superposition_figure(table, [], "ab")
