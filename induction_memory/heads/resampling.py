"""Bootstrap over runs, of a mean over runs or over pairs of runs, and which runs may be compared.

Runs are drawn with replacement; a pair of two copies of one run is left out. The interval is the percentile interval.

Runs are *independent* if no two share their initial weights or their data. Families of retrained runs share one of the
two: `same initialisation` (other data) and `same data` (other initial weights).
"""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

INDEPENDENT, SAME_INITIALISATION, SAME_DATA = "independent", "same initialisation", "same data"
RESAMPLES = 1000
LEVEL = 0.95


def relations(runs: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Relation -> its pairs of runs. `runs` has run, init_seed, data_seed; a seed of nan equals no other."""
    columns = (runs[name].tolist() for name in ("run", "init_seed", "data_seed"))
    seeds = {run: (init_seed, data_seed) for run, init_seed, data_seed in zip(*columns, strict=True)}
    independent: list[str] = []
    for run, own in seeds.items():
        if not any(a == b for other in independent for a, b in zip(own, seeds[other], strict=True)):
            independent.append(run)
    found = {INDEPENDENT: list(combinations(independent, 2)), SAME_INITIALISATION: [], SAME_DATA: []}
    for a, b in combinations(seeds, 2):
        same_init, same_data = (x == y for x, y in zip(seeds[a], seeds[b], strict=True))
        if same_init and not same_data:
            found[SAME_INITIALISATION].append((a, b))
        elif same_data and not same_init:
            found[SAME_DATA].append((a, b))
    return {relation: pairs for relation, pairs in found.items() if pairs}


def interval(
    statistic: Callable[[Int[np.ndarray, " drawn"]], float], n: int, rng: np.random.Generator
) -> tuple[float, float, float]:
    """The statistic of n runs (given by their indices), and its percentile interval; nan limits when n < 2."""
    value = statistic(np.arange(n))
    if n < 2:
        return value, np.nan, np.nan
    drawn = np.array([statistic(rng.integers(n, size=n)) for _ in range(RESAMPLES)])
    kept = drawn[np.isfinite(drawn)]
    if kept.size == 0:
        return value, np.nan, np.nan
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return value, float(low), float(high)


def mean_over_runs(values: Float[np.ndarray, " run"]) -> Callable[[Int[np.ndarray, " drawn"]], float]:
    """The mean of the drawn runs' values, without those that are nan."""

    def statistic(drawn: np.ndarray) -> float:
        kept = values[drawn][np.isfinite(values[drawn])]
        return float(kept.mean()) if kept.size else np.nan

    return statistic


def mean_over_pairs(values: Float[np.ndarray, "run run"]) -> Callable[[Int[np.ndarray, " drawn"]], float]:
    """The mean over pairs of drawn runs; nan marks pairs that do not count (a run with itself among them)."""

    def statistic(drawn: np.ndarray) -> float:
        block = values[np.ix_(drawn, drawn)]
        kept = block[np.isfinite(block)]
        return float(kept.mean()) if kept.size else np.nan

    return statistic


def pair_matrix(pairs: dict[tuple[str, str], float]) -> tuple[list[str], Float[np.ndarray, "run run"]]:
    """The runs of some pairs, and their values as a symmetric matrix with nan elsewhere."""
    names = list(dict.fromkeys(run for pair in pairs for run in pair))
    matrix = np.full((len(names), len(names)), np.nan)
    for (a, b), value in pairs.items():
        i, j = names.index(a), names.index(b)
        matrix[i, j] = matrix[j, i] = value
    return names, matrix
