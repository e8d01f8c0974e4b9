"""Means over seeds with their 95 % t-intervals, and the slope of one column against another within a seed."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import t


def over_seeds(table: pd.DataFrame, by: Sequence[str], value: str = "value") -> pd.DataFrame:
    """One row per group: the mean of `value` over its rows, one per seed, with low and high (mean -+ t s / sqrt n).

    >>> table = pd.DataFrame({"scheme": "a", "seed": [0, 1, 2], "value": [1.0, 2.0, 3.0]})
    >>> over_seeds(table, ["scheme"]).round(2).to_dict("records")
    [{'scheme': 'a', 'mean': 2.0, 'low': -0.48, 'high': 4.48, 'seeds': 3}]
    """
    rows = []
    for key, own in table.groupby(list(by), sort=False):
        known = own[value].dropna().to_numpy(dtype=float)
        n, mean = len(known), float(known.mean()) if len(known) else np.nan
        half = float(t.ppf(0.975, n - 1)) * float(known.std(ddof=1)) / n**0.5 if n > 1 else np.nan
        found = {"mean": mean, "low": mean - half, "high": mean + half, "seeds": n}
        rows.append(dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)) | found)
    return pd.DataFrame(rows)


def slopes(table: pd.DataFrame, by: Sequence[str], x: str, y: str) -> pd.DataFrame:
    """One row per group, with its log-log slope of y over x as `value`; `by` includes the seed.

    >>> table = pd.DataFrame({"seed": 0, "d": [10.0, 100.0], "error": [0.1, 0.01]})
    >>> slopes(table, ["seed"], "d", "error").round(2).to_dict("records")
    [{'seed': 0, 'value': -1.0}]
    """
    rows = []
    for key, own in table.groupby(list(by), sort=False):
        slope = np.polyfit(np.log(own[x].to_numpy(dtype=float)), np.log(own[y].to_numpy(dtype=float)), 1)[0]
        rows.append(dict(zip(by, key if isinstance(key, tuple) else (key,), strict=True)) | {"value": float(slope)})
    return pd.DataFrame(rows)


def common_slope(table: pd.DataFrame, x: str, y: str) -> tuple[float, float]:
    """The 95 % t-interval of one log-log slope that all seeds share, from the deviations of the points; nan if a line
    per seed meets all points.

    >>> table = pd.DataFrame({"seed": [0, 0, 0], "d": [1.0, 10.0, 100.0], "error": [1.0, 0.1, 0.01]})
    >>> np.round(common_slope(table, "d", "error"), 2).tolist()
    [-1.0, -1.0]
    """
    logs = pd.DataFrame({name: np.log(table[name].to_numpy(dtype=float)) for name in (x, y)})
    a, b = (logs - logs.groupby(table["seed"].to_numpy()).transform("mean")).to_numpy().T
    slope, free = (a * b).sum() / (a**2).sum(), len(table) - len(set(table["seed"])) - 1
    if free < 1:
        return np.nan, np.nan
    half = t.ppf(0.975, free) * (((b - slope * a) ** 2).sum() / free / (a**2).sum()) ** 0.5
    return float(slope - half), float(slope + half)
