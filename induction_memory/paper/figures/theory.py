"""One picture for each check of the theory, drawn from the tables that the check returns."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from induction_memory.paper.figures.dimension import one_step

Tables = Mapping[str, pd.DataFrame]

MEASURED, PREDICTED, PRINTED, OTHER = "#2f6fb3", "#c8503c", "#8a8a8a", "#2a9d4a"


def draw(name: str, tables: Tables) -> Figure | None:
    """The picture of a check, or None if the check has only a table."""
    return PICTURES[name](tables) if name in PICTURES else None


def _axes(panels: int, width: float = 3.4, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * panels, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _mark(axes: Axes, values: Iterable[float | int]) -> None:
    """Ticks of a logarithmic axis at the values measured, and nowhere else."""
    finite = sorted({value for value in values if np.isfinite(value)})
    axes.set_xticks(finite, [f"{value:g}" for value in finite], fontsize=7)
    axes.minorticks_off()


def _iterates(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    for (name, part), colour in zip(tables["iterates"].groupby("descent", sort=False), (MEASURED, OTHER), strict=True):
        left.plot(part["step"], part["predicted alpha_0"], color=PREDICTED, lw=3, alpha=0.4)
        left.plot(part["step"], part["alpha_0"], "o", ms=3, color=colour, label=name)
        right.semilogy(part["step"], part["outside"].clip(lower=1e-17), "o-", ms=3, color=colour, label=name)
    left.set(xlabel="step", ylabel=r"$\alpha_0$ (line: $(1-\eta\lambda)^t$)")
    right.set(xlabel="step", ylabel="share outside the span", ylim=(1e-17, 1))
    left.legend(fontsize=7)
    return figure


def _example(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    errors, accuracy = tables["errors"], tables["accuracy"]
    left.loglog(errors["N"], errors["error"], "o", color=MEASURED, label="measured")
    left.loglog(errors["N"], 1 / errors["N"] ** 2, color=PREDICTED, label=r"$\eta/N^2$")
    left.set(xlabel="N", ylabel=r"largest error of the scores ($\eta = 1$)")
    left.legend(fontsize=7)
    _mark(left, errors["N"])
    right.semilogx(accuracy["d"], accuracy["accuracy"], "o-", color=MEASURED)
    _mark(right, accuracy["d"])
    right.set(xlabel="d", ylabel="one-step accuracy, N = 64, T = 32", ylim=(0, 1.05))
    return figure


def _lemma_5(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1)
    table = tables["linearisation"]
    axes.loglog(table["size"], table["error"], "o-", color=MEASURED)
    axes.set(xlabel=r"size of $W_2$", ylabel="relative cost of the linearisation")
    return figure


def _random_vectors(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1, 4.6, 3.2)
    table = tables["variances"]
    d = table["d"]
    series = {
        r"Var $u_i^\top u_i$": ("norm variance", 2 / d, MEASURED),
        r"E$(u_i^\top u_j)^2$": ("overlap variance", 1 / d, OTHER),
        r"E$(x^\top W x)^2$": ("x^T W x variance", table["predicted x^T W x"], PREDICTED),
    }
    for label, (column, predicted, colour) in series.items():
        axes.loglog(d, table[column], "o", color=colour, label=label)
        axes.loglog(d, predicted, color=colour)
    axes.loglog(d, table["printed x^T W x"], "--", color=PRINTED, label=r"E$(x^\top W x)^2$ as printed")
    axes.set(xlabel="d", ylabel="variance (lines: predicted)")
    _mark(axes, d)
    axes.legend(fontsize=7)
    return figure


def _capacity(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    for d, part in tables["capacity"].groupby("d"):
        (line,) = left.semilogx(part["n"], part["recall"], "o", ms=4, label=f"d = {d}")
        left.semilogx(part["n"], part["predicted"], color=line.get_color())
    left.set(xlabel="stored pairs n", ylabel="recall (lines: predicted)", ylim=(0, 1.05))
    left.legend(fontsize=7)
    crossover = tables["crossover"]
    right.loglog(crossover["d"], crossover["recall"], "o", color=MEASURED, label="measured")
    right.loglog(crossover["d"], crossover["predicted"], color=PREDICTED, label="predicted")
    right.loglog(crossover["d"], crossover["d"], "--", color=PRINTED, label="n = d")
    right.set(xlabel="d", ylabel="n at recall 1/2")
    _mark(right, crossover["d"])
    right.legend(fontsize=7)
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
    left.plot(table["t"], table["printed"], color=PRINTED, label="as printed")
    left.plot(table["t"], table["exact"], color=PREDICTED, label="exact")
    left.plot(table["t"], table["own measured"], "s", ms=3, color=OTHER, label="own position, measured")
    left.plot(table["t"], table["own exact"], color=OTHER, lw=1)
    left.set(xlabel="t", ylabel=r"score in $\eta\alpha\alpha' / (T^2 t)$")
    left.legend(fontsize=6)
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
    columns = {"accuracy": "black", "previous attention": PRINTED, "output attention": MEASURED}
    for axes, (axis, title) in zip(top, titles.items(), strict=True):
        part = tables["sweep"][tables["sweep"]["axis"] == axis]
        for column, colour in columns.items():
            axes.semilogx(part["value"], part[column], "o-", ms=3, color=colour, label=column)
        axes.set(xlabel=title, ylim=(0, 1.05))
        _mark(axes, part["value"])
    top[3].legend(fontsize=7, loc="lower right")
    _heat(bottom[0], tables["W_O2"], r"step 1: $w_U(k)^\top W_O^2 W_V^2 w_E(j)$", "j", "k")
    _heat(bottom[1], tables["W_K2"], r"step 2: $(\Phi_1 w_E(i))^\top W_K^2 w_E(j)$", "j (query)", "i (key)")
    scores = tables["W_K1"].to_numpy()
    seen = pd.DataFrame(np.triu(scores) / np.abs(np.triu(scores)).max(0).clip(min=1e-12))
    _heat(bottom[2], seen, r"step 3: $p_s^\top W_K^1 p_t$, each t scaled", "query t", "key s")
    _heat(bottom[3], tables["layer-1 attention"].T, "layer-1 attention after step 3", "query t", "key s")
    return figure


def _bars(axes: Axes, table: pd.DataFrame, label: str, group: str) -> None:
    """Accuracy of each labelled row, with one colour per group."""
    groups = table[group].unique()
    rows = table[label].unique()
    for place, (value, colour) in enumerate(zip(groups, (MEASURED, OTHER, PREDICTED), strict=False)):
        part = table[table[group] == value].set_index(label).loc[rows]
        axes.barh(
            np.arange(len(rows)) + 0.28 * place,
            part["accuracy"],
            0.26,
            color=colour,
            label=f"{group} {value:g}" if isinstance(value, float) else f"{group} {value}",
        )
    axes.set_yticks(np.arange(len(rows)) + 0.28 * (len(groups) - 1) / 2, rows, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="three-step accuracy", xlim=(0, 1))
    axes.legend(fontsize=7)


def _order(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1, 5.6, 3.0)
    _bars(axes, tables["orders"], "order", "start")
    return figure


def _simplifications(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1, 5.6, 3.0)
    _bars(axes, tables["streams"], "case", "scale")
    return figure


def _factorisation(tables: Tables) -> Figure:
    figure, (left, right) = _axes(2)
    table = tables["ranks"]
    left.loglog(table["rank"], table["noise"], "o", color=MEASURED, label="measured")
    left.loglog(table["rank"], table["predicted noise"], color=PREDICTED, label="predicted")
    left.set(xlabel="rank d'", ylabel="off-diagonal noise")
    _mark(left, table["rank"])
    _mark(right, table["rank"])
    left.legend(fontsize=7)
    right.semilogx(table["rank"], table["recall"], "o-", color=MEASURED, label=r"$\frac{d}{2d'} U V$")
    best = "recall of the best matrix of that rank"
    right.semilogx(table["rank"], table[best], "s--", color=OTHER, label="truncated $W_*$")
    right.set(xlabel="rank d'", ylabel="recall of 64 pairs, d = 256", ylim=(0, 1.05))
    right.legend(fontsize=7)
    return figure


def _mlp_memory(tables: Tables) -> Figure:
    figure, (axes,) = _axes(1)
    table = tables["capacity"]
    axes.semilogx(table["n"], table["linear"], "o-", color=PRINTED, label="linear")
    axes.semilogx(table["n"], table["mlp"], "o-", color=MEASURED, label="MLP, b = 1/2")
    axes.set(xlabel="stored pairs n (d = 32)", ylabel="recall", ylim=(0, 1.05))
    _mark(axes, table["n"])
    axes.legend(fontsize=7)
    return figure


PICTURES: dict[str, Callable[[Tables], Figure]] = {
    "iterates": _iterates,
    "example": _example,
    "random-vectors": _random_vectors,
    "capacity": _capacity,
    "lemma-5": _lemma_5,
    "theorem-step-3": _step_3,
    "theorem-accuracy": _accuracy,
    "theorem-order": _order,
    "theorem-simplifications": _simplifications,
    "factorisation": _factorisation,
    "mlp-memory": _mlp_memory,
    "one-step": lambda tables: one_step(tables["recall"]),
}
