"""Rows of tidy tables, picked by the values of their columns."""

from typing import Any

import numpy as np
import pandas as pd


def rows_of(table: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """The rows in which every named column has the value given (or, for a list or tuple, one of the values)."""
    keep = np.ones(len(table), dtype=bool)
    for name, wanted in columns.items():
        values = table[name].to_numpy()
        keep &= np.isin(values, list(wanted)) if isinstance(wanted, list | tuple) else values == wanted
    return table.loc[keep]


def listed(table: pd.DataFrame, column: str) -> list[Any]:
    """The different values of a column, in the order of their first appearance."""
    return list(dict.fromkeys(table[column].tolist()))


def at_last_step(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of each run's last step."""
    last = {run: max(listed(rows_of(table, run=run), "step")) for run in listed(table, "run")}
    keep = [step == last[run] for run, step in zip(table["run"], table["step"], strict=True)]
    return table.loc[np.array(keep, dtype=bool)]
