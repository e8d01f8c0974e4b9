"""Pictures of which head does what: roles, shares, stability across runs, mediation, and the course of training."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

ROLE_COLOURS = {
    "previous-token": "#2f6fb3",
    "current-token": "#d9a441",
    "induction": "#c8503c",
    "other": "#7b4fa3",
    "none": "#d0d3d8",
    "unknown": "#f2f3f5",
}
"""One colour per role, in every figure."""
MEASURE_COLOURS = ("#2f6fb3", "#c8503c", "#2a9d4a", "#7b4fa3", "#1f2328")
HEAD_COLOURS = ("#1b3a5c", "#2f6fb3", "#7fb2e5", "#c9dff5", "#5a3a1b", "#b36f2f", "#e5b27f", "#f5dfc9")
INK = "#1f2328"
SCORE = {"value": "score", "value_low": "score_low", "value_high": "score_high"}


def role_map(roles: pd.DataFrame, title: str = "") -> Figure:
    """One row per head, one column per run. Colour: role; its depth: agreement; number: share of the layer."""
    runs, heads = _listed(roles, "run"), _listed(roles, "head")
    size = (1.6 + 0.95 * len(runs), 1.1 + 0.42 * len(heads))
    figure = Figure(figsize=(max(size[0], 4.5), size[1]), layout="constrained")
    axes = figure.subplots()
    for row in roles.to_dict("records"):
        x, y = runs.index(row["run"]), heads.index(row["head"])
        alpha = 0.35 + 0.65 * float(np.clip(row["agreement"], 0, 1))
        axes.add_patch(_cell(x, y, ROLE_COLOURS[row["role"]], alpha))
        words = "" if not np.isfinite(row["share"]) else f"{row['share']:.2f}"
        words += " (no effect)" if row["distractor"] else ""
        axes.text(x, y, words, ha="center", va="center", fontsize=7, color=INK)
    axes.set(xlim=(-0.5, len(runs) - 0.5), ylim=(len(heads) - 0.5, -0.5), title=title)
    axes.set_xticks(range(len(runs)), runs, rotation=30 if len(runs) > 3 else 0, fontsize=8)
    axes.set_yticks(range(len(heads)), heads, fontsize=8)
    present = [role for role in ROLE_COLOURS if role in set(roles["role"])]
    handles = [Patch(color=ROLE_COLOURS[role], label=role) for role in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return figure


def shared_work(carriers: pd.DataFrame, roles: Sequence[str] = ("previous-token", "induction")) -> Figure:
    """One panel per role: each run a bar of its heads' shares, the effective number of heads above it."""
    runs = _listed(carriers, "run")
    figure = Figure(figsize=(1.2 + (1.0 + 0.5 * len(runs)) * len(roles), 3.2), layout="constrained")
    for axes, role in zip(np.atleast_1d(figure.subplots(1, len(roles), sharey=True)), roles, strict=True):
        own = carriers.loc[(carriers["role"] == role).to_numpy()]
        for x, run in enumerate(runs):
            up, down = 0.0, 0.0
            bar = own.loc[(own["run"] == run).to_numpy()].to_dict("records")
            for i, row in enumerate(bar):
                share = float(row["share"])
                base = up if share >= 0 else down
                axes.bar(x, share, 0.75, base, color=HEAD_COLOURS[i % len(HEAD_COLOURS)], edgecolor="white", lw=0.6)
                if share > 0.12:
                    colour = "white" if i % 4 < 2 else INK
                    axes.text(x, base + share / 2, row["head"], ha="center", va="center", fontsize=6, color=colour)
                up, down = (up + share, down) if share >= 0 else (up, down + share)
            if bar:
                axes.text(x, up + 0.02, f"{bar[0]['effective']:.1f}", ha="center", fontsize=8, color=INK)
        axes.set(title=role, xlim=(-0.6, len(runs) - 0.4))
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.12))
        axes.set_xticks(range(len(runs)), runs, rotation=30 if len(runs) > 3 else 0, fontsize=7)
        axes.axhline(0, color=INK, lw=0.6)
    figure.axes[0].set_ylabel("share of the route's effect")
    figure.suptitle("share of each head; above each bar the effective number of heads", fontsize=9)
    return figure


def stability(table: pd.DataFrame) -> Figure:
    """Numbers of heads (left) and agreement between runs (right) of each role, with their intervals."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    counts, rates = figure.subplots(1, 2)
    _intervals(counts, table, ("heads", "effective"))
    counts.set(ylabel="heads", title="how many heads carry the role")
    counts.set_ylim(bottom=0)
    _intervals(rates, table, ("present", "leader", "agreement", "same layer", "same head"))
    rates.set(ylim=(-0.03, 1.05), title="how stable it is")
    rates.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def identifiability(table: pd.DataFrame) -> Figure:
    """How well one run predicts another's roles: one group per predictor, one colour per relation."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    relations, predictors = _listed(table, "relation"), _listed(table, "predictor")
    for i, relation in enumerate(relations):
        own = table.loc[(table["relation"] == relation).to_numpy()]
        x = np.arange(len(own)) + 0.16 * (i - (len(relations) - 1) / 2)
        _points(axes, x, own, MEASURE_COLOURS[i], relation)
    axes.axhline(0, color=INK, lw=0.6)
    axes.set(ylabel="score (0 chance, 1 certain)", title="one run predicts another's roles from")
    axes.set_xticks(range(len(predictors)), predictors)
    axes.set_ylim(top=1.08)
    axes.legend(frameon=False, fontsize=8)
    return figure


def origins(table: pd.DataFrame, decides: float) -> Figure:
    """How far the same heads have the same shares: one group per role, one colour per relation."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    own = table.loc[(table["measure"] == "which head").to_numpy()]
    relations, roles = _listed(own, "relation"), _listed(own, "role")
    for i, relation in enumerate(relations):
        points = own.loc[(own["relation"] == relation).to_numpy()].rename(columns=SCORE)
        x = np.array([roles.index(role) for role in points["role"]]) + 0.16 * (i - (len(relations) - 1) / 2)
        _points(axes, x, points, MEASURE_COLOURS[i], relation)
    axes.axhline(0, color=INK, lw=0.6)
    axes.axhline(decides, color=INK, lw=0.6, ls=":")
    axes.set(ylabel="score (0 chance, 1 the same heads)", title="the same heads have the same shares")
    axes.set_xticks(range(len(roles)), roles)
    axes.set_xlim(-0.5, max(len(roles), 1) - 0.5)
    if relations:
        axes.legend(frameon=False, fontsize=8)
    return figure


def over_training(shares: pd.DataFrame, routes: Sequence[tuple[str, int, str]]) -> Figure:
    """One panel per route (game, layer, title): each head's Shapley value over the steps of one run."""
    figure = Figure(figsize=(3.6 * len(routes), 2.9), layout="constrained")
    for axes, (game, layer, title) in zip(np.atleast_1d(figure.subplots(1, len(routes))), routes, strict=True):
        own = shares.loc[((shares["game"] == game) & (shares["layer"] == layer)).to_numpy()]
        for i, head in enumerate(_listed(own, "head")):
            line = own.loc[(own["head"] == head).to_numpy()]
            axes.plot(line["step"], line["shapley"], lw=1.4, color=HEAD_COLOURS[i % len(HEAD_COLOURS)], label=head)
        axes.set(title=title, xlabel="step")
        axes.axhline(0, color=INK, lw=0.6)
        axes.legend(frameon=False, fontsize=7)
    figure.axes[0].set_ylabel("Shapley value (logits)")
    return figure


def mediation(table: pd.DataFrame, title: str = "") -> Figure:
    """One row per source, one column per path: the effect of each path in logits."""
    own = table.loc[(table["path"] != "rest").to_numpy()]
    own = own.assign(column=[_path_name(row) for row in own.to_dict("records")])
    sources, columns = _listed(own, "source"), _listed(own, "column")
    values = np.full((len(sources), len(columns)), np.nan)
    for row in own.to_dict("records"):
        values[sources.index(row["source"]), columns.index(row["column"])] = row["effect"]
    figure = Figure(figsize=(1.6 + 0.45 * len(columns), 1.2 + 0.32 * len(sources)), layout="constrained")
    axes = figure.subplots()
    limit = float(np.nanmax(np.abs(values))) or 1.0
    image = axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=60, fontsize=7)
    axes.set_yticks(range(len(sources)), sources, fontsize=7)
    axes.set_title(title, fontsize=9)
    figure.colorbar(image, ax=axes, label="logits of the right output")
    return figure


def _intervals(axes: Axes, table: pd.DataFrame, measures: Sequence[str]) -> None:
    """Roles along the axis; one point with its interval per measure."""
    roles = _listed(table, "role")
    for i, measure in enumerate(measures):
        own = table.loc[(table["measure"] == measure).to_numpy()]
        x = np.array([roles.index(role) for role in own["role"]]) + 0.13 * (i - (len(measures) - 1) / 2)
        _points(axes, x, own.rename(columns=SCORE), MEASURE_COLOURS[i], measure)
    axes.set_xticks(range(len(roles)), roles)
    axes.legend(frameon=False, fontsize=7)


def _points(axes: Axes, x: np.ndarray, rows: pd.DataFrame, colour: str, label: str) -> None:
    value, low, high = (rows[name].to_numpy(dtype=float) for name in ("score", "score_low", "score_high"))
    below, above = (np.clip(np.nan_to_num(gap), 0, None) for gap in (value - low, high - value))
    axes.errorbar(x, value, yerr=np.array([below, above]), fmt="o", ms=4, lw=1.2, capsize=2, color=colour, label=label)


def _cell(x: int, y: int, colour: str, alpha: float) -> Patch:
    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, alpha=alpha, lw=0)


def _path_name(row: dict) -> str:
    return f"{row['target']}.{row['input']}" if row["path"] == "indirect" else str(row["path"])


def _listed(table: pd.DataFrame, column: str) -> list[str]:
    return list(dict.fromkeys(table[column].tolist()))
