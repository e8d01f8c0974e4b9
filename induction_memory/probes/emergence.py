"""Emergence: when each probe changes over training, in which order, and by which lag.

Change point of a curve y over steps t: fit a step function with two levels a, b and a split by least squares; stored
steps are weighted by the time that they represent. The change point is where the curve, interpolated between the stored
steps next to the split, crosses (a + b) / 2. Its confidence interval is the percentile interval of a bootstrap over

    seeds          several runs, one curve each
    associations   for a recall of one run: its associations, recalled or not, are resampled
    batches        for any other probe of one run: independent evaluation batches are resampled

Order of births: in how many runs does one probe change before the next one? In random order, the count
is binomial, with probability 1/2 for a pair and 1/k! for the order of all k. The p-values come from exact one-sided
tests (a sign test per pair). A tie counts as out of order.

Lead and lag: falling curves are flipped, both curves are interpolated on an even grid, and their smoothed increments
are correlated at every shift. The lag is the shift with the largest correlation, positive if the second curve follows
the first.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.errors import require
from induction_memory.model.associations import Spec
from induction_memory.probes.association_births import recalled
from induction_memory.probes.tables import table
from induction_memory.source.replicates import by_configuration
from induction_memory.source.sources import select
from induction_memory.task.sampler import step_rng
from induction_memory.terminal import Progress, track
from induction_memory.trajectory.search import Steps

EXPECTED_ORDER = ("W_O2", "W_K2", "W_K1")  # top-down, Section 5
GRID = 400  # points of the even grid on which lags are measured
SMOOTHING = 80  # grid points in the window that smooths increments, because a recall jumps by single associations


def change_point(steps: Int[np.ndarray, " step"], curve: Float[np.ndarray, " step"]) -> tuple[float, float, float]:
    """The step of the change, the level before and the level after; nan for a curve that never changes."""
    if len(curve) < 2 or np.ptp(curve) == 0 or not np.isfinite(curve).all():
        return np.nan, np.nan, np.nan
    t = np.asarray(steps, dtype=float)
    weight = np.gradient(t)
    below, mass = np.cumsum(weight * curve)[:-1], np.cumsum(weight)[:-1]
    total, all_mass = np.sum(weight * curve), np.sum(weight)
    before, after = below / mass, (total - below) / (all_mass - mass)
    split = int(np.argmax(mass * (all_mass - mass) * (after - before) ** 2))
    a, b = float(before[split]), float(after[split])
    crosses = (curve[:-1] - (a + b) / 2) * (curve[1:] - (a + b) / 2) <= 0
    at = np.flatnonzero(crosses)
    i = int(at[np.argmin(np.abs(at - split))])
    rise = curve[i + 1] - curve[i]
    share = ((a + b) / 2 - curve[i]) / rise if rise != 0 else 0.5
    return float(t[i] + share * (t[i + 1] - t[i])), a, b


def bootstrap(
    steps: Int[np.ndarray, " step"],
    curves: Float[np.ndarray, "replicate step"],
    *,
    resamples: int,
    rng: np.random.Generator,
) -> Float[np.ndarray, " resample"]:
    """Change points of the mean curve of replicates drawn with replacement."""
    n = len(curves)
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n
    return np.array([change_point(steps, weights @ curves)[0] for weights in drawn])


def change_points(
    source: Any,
    names: Sequence[str] = EXPECTED_ORDER,
    *,
    step: "Steps" = "all",
    level: float = 0.95,
    resamples: int = 500,
    batches: int = 8,
    seed: int = 0,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """The change point of each probe, in one run or in several runs together: one row per probe and head.

    Columns: probe, head, change, change_low and change_high (its confidence interval), before and after (levels),
    replicates, over. Several runs must have the same steps. Runs that differ in more than their seeds are kept
    apart, and a first column `configuration` says what differs.

    >>> change_points("induction-small", ["W_O2"])[["probe", "change", "change_low", "change_high"]].round(0)
      probe  change  change_low  change_high
    0  W_O2    52.0        50.0         55.0
    """
    require(0 < level < 1, "level", "a share between 0 and 1", level)
    groups = by_configuration(list(source) if isinstance(source, list | tuple) else [source])
    require(len(groups) > 0, "source", "at least one", "none")
    rows = []
    for (label, runs), name in track(product(groups, names), "probes", progress=progress):
        curves, over = _replicates(runs, name, step, batches)
        for head, (at, values) in curves.items():
            rng = np.random.default_rng(seed)
            change, before, after = change_point(at, values.mean(0))
            drawn = bootstrap(at, values, resamples=resamples, rng=rng) if len(values) > 1 else np.array([np.nan])
            known = drawn[np.isfinite(drawn)]
            low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2]) if len(known) else (np.nan, np.nan)
            found = {"change": change, "change_low": low, "change_high": high, "before": before, "after": after}
            which = {"configuration": label, "probe": name, "head": head}
            rows.append(which | found | {"replicates": len(values), "over": over})
    table = pd.DataFrame(rows)
    return table if len(groups) > 1 else table.drop(columns="configuration", errors="ignore")


def _replicates(
    runs: list[Any], name: str, step: Steps, batches: int
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], str]:
    """head -> (steps, curves [replicate, step]) of a probe, and the kind of replicates."""
    if len(runs) > 1:
        return _stack([table(run, [name], step=step) for run in runs], name), "seeds"
    spec = Spec.parse(name)
    if spec is not None and spec.memory != "W_F":
        source = select(runs[0], step=step)
        found = recalled(source, name).double().cpu().numpy()
        heads = source.at().stack.association(name).heads
        return {head: (source.steps, found[:, h].T) for h, head in enumerate(heads)}, "associations"
    source = select(runs[0], step=step)
    task = source.require_task()
    drawn = [task.sample(16, step_rng(source.eval_seed, 1 + i)) for i in range(batches)]
    return _stack([table(runs[0], [name], step=step, batch=batch) for batch in drawn], name), "batches"


def _stack(tables: list[pd.DataFrame], name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    reasons = [t.attrs["skipped"][name] for t in tables if name in t.attrs["skipped"]]
    require(not reasons, name, "a probe that every run has", reasons[0] if reasons else "")
    curves = {}
    for head in tables[0]["head"].unique():
        columns = [t[t["head"] == head].set_index("step")["value"] for t in tables]
        joined = pd.concat(columns, axis=1, join="inner")
        require(len(joined) > 1, "steps", "two or more steps that all runs have", len(joined))
        curves[head] = (joined.index.to_numpy(), joined.to_numpy().T)
    return curves


def birth_order(
    source: Any,
    expected: Sequence[str] = EXPECTED_ORDER,
    *,
    step: "Steps" = "all",
    seed: int = 0,
    resamples: int = 500,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """Test whether births come in the expected order, over runs that differ in their seed.

    One row per neighbouring pair and one for the whole order: order, runs, in_order, p_value, median_lead (steps
    between the births), and resampled: the share of resamplings of the associations, within runs, in which the order
    holds. For runs with one head per layer. Runs that differ in more than their seeds are kept apart, and a first
    column `configuration` says what differs.

    >>> import induction_memory as im
    >>> im.probes.birth_order(["induction-small"], resamples=20)[["order", "runs", "in_order"]]
                    order  runs  in_order
    0         W_O2 < W_K2     1         1
    1         W_K2 < W_K1     1         0
    2  W_O2 < W_K2 < W_K1     1         0
    """
    groups = by_configuration(list(source) if isinstance(source, list | tuple) else [source])
    require(len(groups) > 0, "source", "at least one", "none")
    tables = []
    told = progress if len(groups) > 1 else None
    for label, members in track(groups, "configurations", progress=told):
        tables.append(_birth_order(members, expected, step, seed, resamples, progress))
        if len(groups) > 1:
            tables[-1].insert(0, "configuration", label)
    return pd.concat(tables, ignore_index=True)


def _birth_order(
    listed: list[Any], expected: Sequence[str], step: Steps, seed: int, resamples: int, progress: Progress
) -> pd.DataFrame:
    from scipy.stats import binomtest

    changes = np.empty((len(listed), len(expected)))
    drawn = np.empty((len(listed), len(expected), resamples))
    for r, run in track(enumerate(listed), "runs", len(listed), progress=progress):
        for e, name in enumerate(expected):
            curves, _ = _replicates([run], name, step, batches=8)
            require(len(curves) == 1, name, "one head per layer", f"{len(curves)} heads")
            at, values = next(iter(curves.values()))
            changes[r, e] = change_point(at, values.mean(0))[0]
            drawn[r, e] = bootstrap(at, values, resamples=resamples, rng=np.random.default_rng([seed, r, e]))
    rows = []
    groups = [(i, i + 1) for i in range(len(expected) - 1)]
    for members in [*groups, tuple(range(len(expected)))] if len(expected) > 2 else groups:
        chosen, again = changes[:, members], drawn[:, members]
        in_order = int((np.diff(chosen, axis=1) > 0).all(1).sum())
        test = binomtest(in_order, len(listed), 1 / factorial(len(members)), alternative="greater")
        rows.append(
            {
                "order": " < ".join(expected[m] for m in members),
                "runs": len(listed),
                "in_order": in_order,
                "p_value": float(test.pvalue),
                "median_lead": float(np.median(chosen[:, -1] - chosen[:, 0])),
                "resampled": float((np.diff(again, axis=1) > 0).all(1).mean()),
            }
        )
    return pd.DataFrame(rows)


def lag(
    steps: Int[np.ndarray, " step"], first: Float[np.ndarray, " step"], second: Float[np.ndarray, " step"]
) -> tuple[float, float]:
    """The number of steps by which the second curve follows the first, and the correlation of their increments at this
    lag."""
    grid = np.linspace(steps[0], steps[-1], GRID)
    rises = []
    for curve in (first, second):
        _, before, after = change_point(steps, curve)
        rise = np.diff(np.interp(grid, steps, curve)) * np.sign(after - before)
        rise = np.convolve(rise, np.hanning(SMOOTHING) / np.hanning(SMOOTHING).sum(), mode="same")
        rises.append((rise - rise.mean()) / (np.linalg.norm(rise - rise.mean()) or np.nan))
    if not np.isfinite(rises).all():
        return np.nan, np.nan
    correlation = np.correlate(rises[1], rises[0], mode="full")
    best = int(np.argmax(correlation))
    return float((best - (len(rises[0]) - 1)) * (grid[1] - grid[0])), float(correlation[best])


def lead_lag(
    source: Any,
    names: Sequence[str] = (*EXPECTED_ORDER, "loss_in_context"),
    *,
    step: "Steps" = "all",
    progress: "Progress" = None,
) -> pd.DataFrame:
    """One row per pair of neighbouring probes of a run: first, second, lag, correlation, distance of change points.

    A positive lag: the second follows the first. For probes with one value per step.

    >>> import induction_memory as im
    >>> im.probes.lead_lag("induction-small", ["W_O2", "W_K2"]).round(2)
      first second    lag  correlation  change
    0  W_O2   W_K2  69.17          0.8  102.31
    """
    tidy = table(source, names, step=step, progress=progress)
    curves, at = {}, np.array([])
    for name in names:
        rows = tidy.loc[tidy["probe"] == name]
        steps_of_probe = rows["step"].to_numpy()
        single = len(rows) > 1 and len(set(steps_of_probe.tolist())) == len(rows)
        require(single, name, "one value per step, and two or more steps", f"{len(rows)} values")
        curves[name], at = rows["value"].to_numpy(), steps_of_probe
    rows = []
    for first, second in pairwise(names):
        delay, correlation = lag(at, curves[first], curves[second])
        apart = change_point(at, curves[second])[0] - change_point(at, curves[first])[0]
        rows.append({"first": first, "second": second, "lag": delay, "correlation": correlation, "change": apart})
    return pd.DataFrame(rows)
