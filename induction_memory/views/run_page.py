"""The page of one or more runs: `report(run).save("run.html")`, or the last line of a notebook's cell.

It is one file that works offline: attention, memories, curves and causes under one slider over training. For the
simplified model it also has the weights, so that the reader can type a text, switch parts off and erase associations.

The page of a series of checkpoints that others trained: one HTML file that works offline.

It shows what the files say about the series (`series_check`), the standard head scores over training, what is lost
without each head, the roles of the heads at the last checkpoint, and under a slider over the checkpoints the attention
maps and the numbers of each head.

A slider over the checkpoints of a series: the attention maps and the numbers of each head at one step at a time.

The page contains one picture and one table per step, and the slider chooses the step. Nothing is computed in the page.
Without scripts all steps are shown one below another.
"""

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from induction_memory.errors import InputError, require
from induction_memory.fields import require_integer
from induction_memory.files import require_file, write_file
from induction_memory.heads.identification import identify
from induction_memory.interventions.ablations import ablate
from induction_memory.probes.standard_scores import head_scores
from induction_memory.source.sources import Sequences, open_source
from induction_memory.terminal import number
from induction_memory.trajectory.series import Revisions
from induction_memory.trajectory.trajectory import Trajectory
from induction_memory.trajectory.verification import check
from induction_memory.views.attention_maps import MOST, AttentionView, attention
from induction_memory.views.attention_page import POLICY, STYLE, framed
from induction_memory.views.figures.curves import series_figure
from induction_memory.views.page.document import document
from induction_memory.views.page.gather import EVALUATED, LENGTH, Progress, gather
from induction_memory.views.page.pack import Pack, within

STEPS = 48
"""The largest number of checkpoints on the slider, evenly chosen."""

SLIDER_STYLE = """
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
    return f"<style>{SLIDER_STYLE}</style>{control}\n{''.join(parts)}\n<script>{SCRIPT}</script>"


_TABLE_STYLE = "table { border-collapse: collapse; } td, th { padding: .1rem .7rem .1rem 0; text-align: left; }"


@dataclass(frozen=True, eq=False)
class SeriesReport:
    """A page that shows itself in a notebook and can be saved."""

    title: str
    body: str

    def html(self) -> str:
        """The whole page."""
        return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{html.escape(self.title)}</title><style>{STYLE}{_TABLE_STYLE}</style></head>
<body><h1>{html.escape(self.title)}</h1>
{self.body}
</body></html>
"""

    def save(self, path: str | Path) -> Path:
        """Write the page to an .html file."""
        path = require_file(path, (".html",))
        write_file(path, self.html())
        return path

    def _repr_html_(self) -> str:
        return framed(self.html(), height=1200)


def series_report(
    series: Revisions,
    *,
    batch: Sequences = None,
    text: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> SeriesReport:
    """The page of a series; ablations and roles on `batch`, or on random tokens repeated once."""
    say = progress or (lambda message: None)
    say("checking the files")
    findings = check(series)
    say("head scores")
    scores = head_scores(series, step="all")
    say("ablations")
    lost = ablate(series, batch, heads="all", kind="mean", step="all")
    say("roles")
    roles = identify(series, batch=batch).roles
    panels, lowest = curves(scores, lost)
    parts = [
        f"<p>{len(series)} checkpoints, steps {series.steps[0]} to {series.steps[-1]}.</p>",
        _section("Files", _table(findings) if len(findings) else "<p>No finding: no duplicates, gaps or jumps.</p>"),
        _section("Heads over training", _image(series_figure(panels, lowest=lowest))),
        _section(f"Roles at step {series.steps[-1]}", _table(roles.loc[:, ["head", "role", "confidence", "share"]])),
    ]
    say("attention maps")
    views = views_by_step(series, chosen_steps(series.steps), text, batch)
    parts.append(_section("Heads at one checkpoint", slider(views, by_head(scores, lost), _table)))
    return SeriesReport(f"{series.name}: a series of checkpoints", "\n".join(parts))


def curves(scores: pd.DataFrame, lost: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], Sequence[str]]:
    """The panels of head scores and ablations, and the names of those in which low lines are the important ones."""
    by_head = {name: scores.pivot_table(index="step", columns="head", values=name) for name in scores.columns[2:]}
    intact = lost[lost["component"] == "none"].set_index("step")["in_context_loss"]
    heads = lost[lost["component"] != "none"]
    added = heads.pivot_table(index="step", columns="component", values="in_context_loss").sub(intact, axis="index")
    panels = {
        "previous-token score": by_head["previous_token"],
        "induction score": by_head["induction"],
        "in-context loss": intact.to_frame("intact"),
        "loss added without a head": added,
    }
    return panels, ()


def by_head(scores: pd.DataFrame, lost: pd.DataFrame) -> pd.DataFrame:
    """One row per step and head: its scores, and the in-context loss that is added without it."""
    intact = lost.loc[lost["component"] == "none", ["step", "in_context_loss"]]
    rows = lost.loc[lost["component"] != "none"].merge(intact, on="step", suffixes=("", "_intact"))
    difference = rows["in_context_loss"] - rows["in_context_loss_intact"]
    added = pd.DataFrame({"step": rows["step"], "head": rows["component"], "loss_added": difference})
    return scores.merge(added, on=["step", "head"])


def _section(title: str, content: str) -> str:
    return f"<h2>{html.escape(title)}</h2>\n{content}"


def _table(table: pd.DataFrame) -> str:
    def cell(value: Any) -> str:
        return html.escape(number(value) if isinstance(value, float) else "" if value is pd.NA else str(value))

    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in table.columns)
    rows = ["".join(f"<td>{cell(v)}</td>" for v in row) for row in table.itertuples(index=False)]
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _image(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return _data_image(buffer.getvalue(), "svg+xml", "curves over the checkpoints")


def _data_image(content: bytes, kind: str, says: str) -> str:
    require(len(content) > 0, "image", "some content", "none")
    return f'<img alt="{says}" src="data:image/{kind};base64,{base64.b64encode(content).decode()}">'


MOST_RUNS = 4
MOST_TOKENS = 4096
BUDGET = 8_000_000  # bytes of the HTML file


@dataclass(frozen=True, eq=False)
class Report:
    """A page that shows itself in a notebook and can be saved."""

    title: str
    pack: Pack

    def __repr__(self) -> str:
        runs = ", ".join(run["name"] for run in self.pack.meta["runs"])
        return f"Report({runs}: {len(self.html()) / 1e6:.1f} MB of HTML)"

    @cached_property
    def _document(self) -> str:
        induction = all(run["triggers"] for run in self.pack.meta["runs"])
        return document(self.title, self.pack.blob(), induction=induction)

    def html(self) -> str:
        """The whole page."""
        return self._document

    def save(self, path: str | Path) -> Path:
        """Write the page to an .html file."""
        path = require_file(path, [".html"])
        write_file(path, self.html())
        return path

    def _repr_html_(self) -> str:
        return framed(self.html(), height=900)

    def widget(self, step: int | None = None) -> Any:
        """The page as an anywidget with a two-way `step`; needs a running kernel and the package `anywidget`."""
        from induction_memory.views.widget import widget

        return widget(self, step)


def report(
    sources: Any,
    *,
    steps: Sequence[int] | None = None,
    sequences: int = 3,
    length: int = LENGTH,
    causal_steps: int = 10,
    budget: int = BUDGET,
    title: str | None = None,
    progress: Progress | None = None,
) -> Report | SeriesReport:
    """The page of one run, or of several side by side (trajectories, their folders or shipped names), or of a series.

    `steps` are the stored steps that it shows, all by default. It shows `sequences` sequences of `length` tokens, and
    measures ablations and roles at up to `causal_steps` steps. A page over `budget` bytes is made smaller, and says
    how: numbers behind colours get 8 bits instead of 16, then fewer sequences are shown, then fewer steps.

    >>> import tempfile
    >>> import induction_memory as im
    >>> page = im.report("markov-1", steps=[1500], sequences=1, causal_steps=1)
    >>> page.save(f"{tempfile.mkdtemp()}/page.html").name
    'page.html'
    """
    listed = list(sources) if isinstance(sources, list | tuple) else [sources]
    opened = [open_source(source) for source in listed]
    for source in opened:
        if isinstance(source, Revisions):
            require(len(listed) == 1, "runs", "a series of checkpoints alone", f"{len(listed)} runs")
            return series_report(source if steps is None else source.at(steps), progress=progress)
    require(1 <= len(listed) <= MOST_RUNS, "runs", f"1 to {MOST_RUNS} runs", len(listed))
    require_integer(sequences, "sequences", 1, EVALUATED)
    require_integer(length, "length", 1, MOST_TOKENS)
    require_integer(causal_steps, "causal_steps", 1, 10_000)
    require_integer(budget, "budget", 500_000, 10**10, "bytes")
    runs = [_run(source) for source in opened]
    chosen = [list(map(int, run.resolve_all(steps))) for run in runs]
    title = title or " and ".join(run.name for run in runs)
    say = progress or (lambda message: None)
    packs = [
        gather(run, at, shown=sequences, length=length, causal_steps=causal_steps, bits=16, progress=say)
        for run, at in zip(runs, chosen, strict=True)
    ]
    return Report(title, within(packs, title, budget))


def _run(source: Any) -> Trajectory:
    if not isinstance(source, Trajectory):
        raise InputError(f"runs: expected trajectories, their folders or names, got {source.name}")
    source.require_steps()
    require(source.task is not None, "runs", "a run whose task is known", f"{source.name}, imported without one")
    return source
