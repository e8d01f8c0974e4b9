"""One picture for each check of the theory, drawn from the tables that the check returns."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from induction_memory.paper.figures import one_step

Tables = Mapping[str, pd.DataFrame]

MEASURED, PREDICTED, PRINTED, OTHER = "#2f6fb3", "#c8503c", "#8a8a8a", "#2a9d4a"
SHARE = (0, 1.05)


def draw(name: str, tables: Tables) -> Figure | None:
    """The picture of a check, or None if the check has only a table."""
    return PICTURES[name](tables) if name in PICTURES else None


def _axes(panels: int, width: float = 3.4, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * panels, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _curves(
    axes: Axes, table: pd.DataFrame, x: str, *curves: tuple[str, str, str, str | None], ms: int = 6, **setting: object
) -> None:
    """Columns against x, each with a style, a colour and a label; `setting` is for the axes.

    A logarithmic axis has ticks only at the measured values.
    """
    for column, style, colour, label in curves:
        axes.plot(table[x], table[column], style, ms=ms, color=colour, label=label)
    axes.set(**{"xlabel": x, **setting})
    if setting.get("xscale") == "log":
        finite = sorted({value for value in table[x].tolist() if np.isfinite(value)})
        axes.set_xticks(finite, [f"{value:g}" for value in finite], fontsize=7)
        axes.minorticks_off()
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7)


def _iterates(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    for (name, part), colour in zip(tables["iterates"].groupby("descent", sort=False), (MEASURED, OTHER), strict=True):
        left.plot(part["step"], part["predicted alpha_0"], color=PREDICTED, lw=3, alpha=0.4)
        _curves(left, part, "step", ("alpha_0", "o", colour, str(name)), ms=3)
        part = part.assign(outside=part["outside"].clip(lower=1e-17))
        _curves(right, part, "step", ("outside", "o-", colour, None), ms=3, yscale="log", ylim=(1e-17, 1))
    left.set_ylabel(r"$\alpha_0$ (line: $(1-\eta\lambda)^t$)")
    right.set_ylabel("share outside the span")
    return figure


def _example(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    errors = tables["errors"].assign(predicted=1 / tables["errors"]["N"] ** 2)
    both = (("error", "o", MEASURED, "measured"), ("predicted", "-", PREDICTED, r"$\eta/N^2$"))
    ylabel = r"largest error of the scores ($\eta = 1$)"
    _curves(left, errors, "N", *both, xscale="log", yscale="log", ylabel=ylabel)
    ylabel = "one-step accuracy, N = 64, T = 32"
    one = ("accuracy", "o-", MEASURED, None)
    _curves(right, tables["accuracy"], "d", one, xscale="log", ylabel=ylabel, ylim=SHARE)
    return figure


def _lemma_5(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1)
    words: dict[str, Any] = {"xlabel": r"size of $W_2$", "ylabel": "relative cost of the linearisation"}
    _curves(axes, tables["linearisation"], "size", ("error", "o-", MEASURED, None), xscale="log", yscale="log", **words)
    return figure


def _random_vectors(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1, 4.6, 3.2)
    d = tables["variances"]["d"]
    table = tables["variances"].assign(norm=2 / d, overlap=1 / d)
    curves = (
        ("norm variance", "o", MEASURED, r"Var $u_i^\top u_i$"),
        ("norm", "-", MEASURED, None),
        ("overlap variance", "o", OTHER, r"E$(u_i^\top u_j)^2$"),
        ("overlap", "-", OTHER, None),
        ("x^T W x variance", "o", PREDICTED, r"E$(x^\top W x)^2$"),
        ("predicted x^T W x", "-", PREDICTED, None),
        ("printed x^T W x", "--", PRINTED, r"E$(x^\top W x)^2$ as printed"),
    )
    _curves(axes, table, "d", *curves, xscale="log", yscale="log", ylabel="variance (lines: predicted)")
    return figure


def _capacity(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    for d, part in tables["capacity"].groupby("d"):
        (line,) = left.semilogx(part["n"], part["recall"], "o", ms=4, label=f"d = {d}")
        left.semilogx(part["n"], part["predicted"], color=line.get_color())
    left.set(xlabel="stored pairs n", ylabel="recall (lines: predicted)", ylim=SHARE)
    left.legend(fontsize=7)
    curves = (
        ("recall", "o", MEASURED, "measured"),
        ("predicted", "-", PREDICTED, "predicted"),
        ("d", "--", PRINTED, "n = d"),
    )
    _curves(right, tables["crossover"], "d", *curves, xscale="log", yscale="log", ylabel="n at recall 1/2")
    return figure


def _heat(axes: Axes, table: pd.DataFrame, title: str, xlabel: str, ylabel: str) -> None:
    """A score matrix, symmetric in colour around zero."""
    values = table.to_numpy()
    limit = np.abs(values).max()
    axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(title, fontsize=9)
    axes.set(xlabel=xlabel, ylabel=ylabel)


def _step_3(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2, 3.8, 3.0)
    table = tables["constants"]
    left.errorbar(table["t"], table["measured"], 2 * table["error"], fmt="o", ms=3, color=MEASURED, label="measured")
    curves = (
        ("printed", "-", PRINTED, "as printed"),
        ("exact", "-", PREDICTED, "exact"),
        ("own measured", "s", OTHER, "own position, measured"),
        ("own exact", "-", OTHER, None),
    )
    _curves(left, table, "t", *curves, ms=3, ylabel=r"score in $\eta\alpha\alpha' / (T^2 t)$")
    _heat(right, tables["scores"], r"$p_s^\top W_K^1 p_t$ times $T^2 t / (\eta\alpha\alpha')$", "query t", "key s")
    return figure


def _accuracy(tables: Tables) -> Figure:
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    top, bottom = figure.subplots(2, 4)
    titles = {
        "scale": r"step size $\eta / (N T)$",
        "N": "vocabulary N",
        "T": "length T",
        "d": "dimension d (N 32, T 16)",
    }
    colours = {"accuracy": "black", "previous attention": PRINTED, "output attention": MEASURED}
    curves = [(column, "o-", colour, None) for column, colour in colours.items()]
    for axes, (axis, title) in zip(top, titles.items(), strict=True):
        part = tables["sweep"].loc[(tables["sweep"]["axis"] == axis).to_numpy()]
        _curves(axes, part, "value", *curves, ms=3, xscale="log", xlabel=title, ylim=SHARE)
    top[3].legend(top[3].get_lines(), colours, fontsize=7, loc="lower right")
    _heat(bottom[0], tables["W_O2"], r"step 1: $w_U(k)^\top W_O^2 W_V^2 w_E(j)$", "j", "k")
    _heat(bottom[1], tables["W_K2"], r"step 2: $(\Phi_1 w_E(i))^\top W_K^2 w_E(j)$", "j (query)", "i (key)")
    scores = tables["W_K1"].to_numpy()
    seen = pd.DataFrame(np.triu(scores) / np.abs(np.triu(scores)).max(0).clip(min=1e-12))
    _heat(bottom[2], seen, r"step 3: $p_s^\top W_K^1 p_t$, each t scaled", "query t", "key s")
    _heat(bottom[3], tables["layer-1 attention"].T, "layer-1 attention after step 3", "query t", "key s")
    return figure


def _bars(table: pd.DataFrame, label: str, group: str) -> Figure:
    """Accuracy of each labelled row, with one colour per group."""
    figure, (axes,) = _axes(1, 5.6, 3.0)
    groups, rows = table[group].unique(), table[label].unique()
    for place, (value, colour) in enumerate(zip(groups, (MEASURED, OTHER, PREDICTED), strict=False)):
        part = table[table[group] == value].set_index(label).loc[rows]
        called = f"{group} {value:g}" if isinstance(value, float) else f"{group} {value}"
        axes.barh(np.arange(len(rows)) + 0.28 * place, part["accuracy"], 0.26, color=colour, label=called)
    axes.set_yticks(np.arange(len(rows)) + 0.28 * (len(groups) - 1) / 2, rows, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="three-step accuracy", xlim=(0, 1))
    axes.legend(fontsize=7)
    return figure


def _factorisation(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    noise = (("noise", "o", MEASURED, "measured"), ("predicted noise", "-", PREDICTED, "predicted"))
    words: dict[str, Any] = {"xlabel": "rank d'", "xscale": "log"}
    _curves(left, tables["ranks"], "rank", *noise, yscale="log", ylabel="off-diagonal noise", **words)
    product = ("recall", "o-", MEASURED, r"$\frac{d}{2d'} U V$")
    best = ("recall of the best matrix of that rank", "s--", OTHER, "truncated $W_*$")
    words |= {"ylabel": "recall of 64 pairs, d = 256"}
    _curves(right, tables["ranks"], "rank", product, best, ylim=SHARE, **words)
    return figure


def _mlp_memory(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1)
    curves = (("linear", "o-", PRINTED, "linear"), ("mlp", "o-", MEASURED, "MLP, b = 1/2"))
    words: dict[str, Any] = {"xlabel": "stored pairs n (d = 32)", "ylabel": "recall"}
    _curves(axes, tables["capacity"], "n", *curves, xscale="log", ylim=SHARE, **words)
    return figure


PICTURES: dict[str, Callable[[Tables], Figure]] = {
    "iterates": _iterates,
    "example": _example,
    "random-vectors": _random_vectors,
    "capacity": _capacity,
    "lemma-5": _lemma_5,
    "theorem-step-3": _step_3,
    "theorem-accuracy": _accuracy,
    "theorem-order": lambda tables: _bars(tables["orders"], "order", "start"),
    "theorem-simplifications": lambda tables: _bars(tables["streams"], "case", "scale"),
    "factorisation": _factorisation,
    "mlp-memory": _mlp_memory,
    "one-step": lambda tables: one_step(tables["recall"]),
}
