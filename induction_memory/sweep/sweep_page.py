"""A sweep on one page: one row per run with its settings, results and small curves, and all details of each run below.

It is one HTML file without scripts. Its content security policy allows only its own style.
"""

import html
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from induction_memory.errors import Error
from induction_memory.sweep import plan
from induction_memory.sweep.loop import COPY
from induction_memory.sweep.results import is_sweep, table
from induction_memory.terminal import number
from induction_memory.trajectory.trajectory import load
from induction_memory.views.page.document import Page, digest, source

POINTS = 80
"""The largest number of points of a curve."""
WIDTH, HEIGHT = 240.0, 64.0
FIRST = ("run", "state", "error")
SEED = re.compile(r"\bseed$|_seed$")
"""Settings in which repetitions of one configuration differ."""
TRAINED = ("steps", "seconds")


def page(folder: str | Path) -> Page:
    """The page of a sweep's folder, or of any folder of runs.

    >>> import induction_memory as im
    >>> im.sweep.page("checkpoints").title
    'checkpoints'
    """
    found = table(folder)
    place = Path(folder)
    title = place.resolve().name
    commands = {run.name: run.command for run in plan.read(place / COPY).runs} if is_sweep(place) else {}
    curves = {str(name): _curves(place / str(name)) for name in found["run"]}
    loss = max((float(np.nanmax(drawn["loss"])) for drawn in curves.values() if "loss" in drawn), default=1.0)
    settings = [name for name in found.columns if "." in name or name == "seed"]
    shown = [name for name in found.columns if name.startswith(("loss", "accuracy"))]
    parts = [_together(found, [name for name in settings if not SEED.search(name)], curves, loss)]
    parts += [_table(found, settings, shown, curves, loss)]
    parts += [_one(i, found, settings, curves, loss, commands) for i in range(len(found))]
    return Page(title, _document(title, found, "\n".join(parts)))


def _document(title: str, found: pd.DataFrame, body: str) -> str:
    style = source("page.css") + source("sweep.css")
    policy = f"default-src 'none'; style-src {digest(style)}; base-uri 'none'; form-action 'none'"
    counts = found["state"].value_counts()
    told = ", ".join(f"{counts[state]} {state}" for state in counts.index)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{html.escape(title)}: a sweep</title>\n'
        f'<style>{style}</style>\n</head>\n<body>\n<header class="top" id="top">\n'
        f'<p class="kicker">induction_memory</p>\n<h1>{html.escape(title)}</h1>\n'
        f'<p class="lede">{len(found)} runs: {html.escape(told)}. Columns with a dot are the settings in which runs '
        'differ; results are the last measured values. Curves: <span class="key-accuracy">accuracy</span> from 0 to 1 '
        'and <span class="key-loss">loss</span> from 0 to the largest of all runs, over the steps of the run.</p>\n'
        f"</header>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _together(found: pd.DataFrame, settings: list[str], curves: dict[str, dict[str, np.ndarray]], loss: float) -> str:
    """The curves of all runs in one picture, and of each configuration with mean and spread over seeds."""
    groups: Any = found.groupby(settings, dropna=False, sort=False) if settings else [((), found)]
    rows = [((), found), *((values, members) for values, members in groups if len(members) > 1)]
    lines = []
    for n, (values, members) in enumerate(rows):
        drawn = [curves[name] for name in members["run"] if curves[name]]
        cells = [f'<td>{"over seeds" if n else "all runs"}</td><td class="number">{len(drawn)}</td>']
        for name, most in (("accuracy", 1.0), ("loss", loss)):
            cells.append(f"<td>{_overlay([one for one in drawn if name in one], name, most, averaged=n > 0)}</td>")
        cells += [f'<td class="{_kind(value)}">{_cell(value)}</td>' for value in values]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th>{_text(name)}</th>" for name in ("", "runs", "accuracy", "loss", *settings))
    told = "Thin lines: runs. Thick line, band and number: mean and standard deviation over seeds, at the steps of all."
    return (
        f'<div class="sweep together"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + f"\n</tbody></table>\n{f'<p>{told}</p>' if len(rows) > 1 else ''}</div>"
    )


def _overlay(runs: Sequence[dict[str, np.ndarray]], name: str, most: float, *, averaged: bool) -> str:
    """The curves of several runs on one axis of steps, and if they differ by chance alone their mean with its band."""
    if not runs:
        return ""
    last, shared = (choose(one["step"][-1] for one in runs) for choose in (max, min))
    lines = [_line(one[name], most, f"{name} run", one["step"] / max(last, 1)) for one in runs]
    if not averaged or len(runs) < 2:
        return _framed(lines, f"{name} by step")
    at = np.linspace(0, shared, POINTS)
    known = [(one["step"][ok], one[name][ok]) for one in runs if (ok := np.isfinite(one[name])).any()]
    values = np.stack([np.interp(at, step, curve) for step, curve in known])
    mean, spread = values.mean(0), values.std(0, ddof=1)
    edges = np.concatenate([mean + spread, (mean - spread)[::-1]])
    lines.append(_line(edges, most, f"{name} band", np.concatenate([at, at[::-1]]) / max(last, 1)))
    lines.append(_line(mean, most, f"{name} mean", at / max(last, 1)))
    told = f"{number(float(mean[-1]))} ± {number(float(spread[-1]))}"
    return f"{_framed(lines, f'{name} by step')}<div>{told}</div>"


def _table(
    found: pd.DataFrame, settings: list[str], shown: list[str], curves: dict[str, dict[str, np.ndarray]], loss: float
) -> str:
    names = [name for name in (*settings, *TRAINED, *shown) if name in found.columns]
    head = "".join(f"<th>{_text(name)}</th>" for name in ("run", "state", "curves", *names))
    rows = []
    for i, row in enumerate(found.to_dict("records")):
        cells = [f'<td><a href="#run-{i}">{_text(row["run"])}</a></td>', f"<td>{_text(row['state'])}</td>"]
        cells.append(f"<td>{_drawing(curves[row['run']], loss)}</td>")
        cells += [f'<td class="{_kind(row[name])}">{_cell(row[name])}</td>' for name in names]
        if row["error"]:
            cells[1] = f'<td>{_text(row["state"])}<div class="error">{_text(row["error"])}</div></td>'
        rows.append(f'<tr id="row-{i}">{"".join(cells)}</tr>')
    return (
        f'<div class="sweep"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + ("\n</tbody></table></div>")
    )


def _one(
    i: int,
    found: pd.DataFrame,
    settings: list[str],
    curves: dict[str, dict[str, np.ndarray]],
    loss: float,
    commands: dict[str, str],
) -> str:
    """The details of a run: its settings, all its results, and the command that trains it alone."""
    row: dict[str, Any] = {str(name): value for name, value in found.iloc[i].to_dict().items()}
    name = str(row["run"])
    links = [f'<a href="#row-{i}">in the table</a>']
    links += [f'<a href="#run-{i - 1}">run before</a>'] * (i > 0)
    links += [f'<a href="#run-{i + 1}">next run</a>'] * (i + 1 < len(found))
    results = [key for key in row if key not in (*FIRST, *settings)]
    pairs = "".join(f"<dt>{_text(key)}</dt><dd>{_cell(row[key])}</dd>" for key in (*settings, *results))
    error = f'<p class="error">{_text(row["error"])}</p>' if row["error"] else ""
    command = f"<p><code>{_text(commands[name])}</code></p>" if name in commands else ""
    return (
        f'<section class="one" id="run-{i}"><h2>{_text(name)}</h2><nav>{"".join(links)}</nav>{error}'
        f"{_drawing(curves[name], loss)}{command}<dl><dt>state</dt><dd>{_text(row['state'])}</dd>{pairs}</dl></section>"
    )


def _curves(folder: Path) -> dict[str, np.ndarray]:
    """Loss and accuracy over the steps of a run, thinned; nothing for a run that cannot be read."""
    try:
        run = load(folder)
        metrics, main = run.metrics, getattr(run.task, "main", None)
    except Error:
        return {}
    columns = {"step": "step", "loss": "loss", "accuracy": f"accuracy_{main}"}
    chosen = np.unique(np.linspace(0, max(len(metrics) - 1, 0), POINTS).round().astype(int))
    return {
        name: metrics[column].to_numpy(dtype=float)[chosen]
        for name, column in columns.items()
        if column in metrics and bool(metrics[column].notna().to_numpy().any())
    }


def _drawing(curves: dict[str, np.ndarray], loss: float) -> str:
    if not curves:
        return ""
    shown = {name: values for name, values in curves.items() if name != "step"}
    lines = [_line(values, 1.0 if name == "accuracy" else loss, name) for name, values in shown.items()]
    return _framed(lines, f"{', '.join(shown)} by step")


def _framed(lines: Sequence[str], label: str) -> str:
    return (
        f'<svg class="curves" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">'
        f'<line x1="0" y1="{HEIGHT:g}" x2="{WIDTH:g}" y2="{HEIGHT:g}"/>{"".join(lines)}</svg>'
    )


def _line(values: np.ndarray, most: float, name: str, across: np.ndarray | None = None) -> str:
    """A curve from 0 at the bottom to `most` at the top, without steps that were not measured.

    `across` are the places from 0 to 1, by default evenly spaced.
    """
    x = np.linspace(0, 1, len(values)) if across is None else across
    finite = [
        (a * WIDTH, HEIGHT * (1 - float(np.clip(value / most, 0, 1))))
        for a, value in zip(x, values, strict=True)
        if math.isfinite(value)
    ]
    return f'<polyline class="{name}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in finite)}"/>'


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else "text"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return _text(number(value)) if isinstance(value, float) else _text(value)


def _text(value: Any) -> str:
    return html.escape(str(value))
