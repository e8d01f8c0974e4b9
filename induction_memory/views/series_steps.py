"""A slider over the checkpoints of a series: the attention maps and the numbers of each head at one step at a time.

The page contains one picture and one table per step, and the slider chooses the step. Nothing is computed in the page.
Without scripts all steps are shown one below another.
"""

import base64
import html
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Int

from induction_memory.subject import Sequences
from induction_memory.trajectory.revisions import Revisions
from induction_memory.views.attention import MOST, AttentionView, attention

STEPS = 48
"""The largest number of checkpoints on the slider, evenly chosen."""

STYLE = """
.slider { display: flex; gap: .8rem; align-items: center; } .slider input { flex: 1; max-width: 40rem; }
.slider output { min-width: 8rem; font-variant-numeric: tabular-nums; }
"""
SCRIPT = """
const slider = document.getElementById("step"), said = document.getElementById("step-said");
const shown = [...document.querySelectorAll(".at-step")];
function show() {
  shown.forEach((part, i) => { part.hidden = i !== Number(slider.value); });
  said.value = slider.ariaValueText = "step " + shown[slider.value].dataset.step;
}
slider.closest(".slider").hidden = false;
slider.addEventListener("input", show);
show();
"""


def chosen_steps(steps: Int[np.ndarray, " step"]) -> list[int]:
    """The steps of the slider: all of a series, or `STEPS` of them."""
    count = min(len(steps), STEPS)
    return steps[np.unique(np.linspace(0, len(steps) - 1, count).round().astype(int))].tolist()


def views_by_step(series: Revisions, steps: list[int], text: str | None, batch: Sequences) -> dict[int, AttentionView]:
    """The attention maps of each step, all over the same sequence."""
    found: dict[int, AttentionView] = {}
    for start in range(0, len(steps), MOST):
        part = steps[start : start + MOST]
        view = attention(series, step=part, text=text, batch=None if text is not None else batch)
        for i, step in enumerate(part):
            found[step] = replace(view, columns=(f"step {step}",), patterns=view.patterns[i : i + 1])
    return found


def slider(views: Mapping[int, AttentionView], numbers: pd.DataFrame, table: Callable[[pd.DataFrame], str]) -> str:
    """The slider with one part per step: maps, and the rows of `numbers` (step, head ...) as `table` writes them."""
    steps = list(views)
    parts = []
    for step, view in views.items():
        drawn, _, _ = view.picture()
        source = f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"
        rows = table(numbers.loc[numbers["step"] == step, numbers.columns != "step"])
        says = html.escape(f"attention maps at step {step}")
        parts.append(f'<div class="at-step" data-step="{step}"><img alt="{says}" src="{source}">\n{rows}</div>')
    control = (
        f'<p class="slider" hidden><label for="step">Checkpoint</label>'
        f'<input type="range" id="step" min="0" max="{len(steps) - 1}" value="{len(steps) - 1}">'
        f'<output id="step-said" for="step"></output></p>'
    )
    return f"<style>{STYLE}</style>{control}\n{''.join(parts)}\n<script>{SCRIPT}</script>"
