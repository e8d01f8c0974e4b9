"""List what moved since the numbers were frozen.

    python -m tests.frozen.compare [--only CALL ...] [--runs RUN ...] [--rows N]

Measures again with the present code, and prints rows that are missing, rows that are new, and values that moved,
grouped by call, run and the beginning of the key, each with its count and largest difference. Exits 1 if any is missing
or moved that explained.py does not explain: a row that is new is told, and is no fault.
A number moved if it is further away than RELATIVE times its size plus ABSOLUTE, a word if it differs at all.

Heads: the frozen tables of probes count heads from 0 (`1`, `0>1`), the present ones say `L1H2`, `L1H1>L2H2`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tests.frozen.calls import RUNS, WHOLE
from tests.frozen.explained import reasons
from tests.frozen.freeze import NAMING, arguments, chosen, measured

FROZEN = Path(__file__).with_name("numbers.parquet")
RELATIVE, ABSOLUTE = 1e-5, 1e-6
LAYERS = {"W_F": "2"}  # the layer of a probe or memory whose name does not end with one


def head_name(key: str) -> str:
    """A key of a frozen table of probes with its heads named as today: `head=0>1` becomes `head=L1H1>L2H2`."""
    parts = dict(part.split("=", 1) for part in key.split("|") if "=" in part)
    head = parts.get("head", "")
    if not re.fullmatch(r"\d+(>\d+)?", head):
        return key
    if ">" in head:
        first, second = head.split(">")
        name = f"L1H{int(first) + 1}>L2H{int(second) + 1}"
    else:
        name = f"L{_layer(parts)}H{int(head) + 1}"
    return key.replace(f"head={head}", f"head={name}")


def _layer(parts: dict[str, str]) -> str:
    """The layer that a row speaks of: its own column, or the number in the name of the probe or memory."""
    if "layer" in parts:
        return parts["layer"]
    name = next(parts[column] for column in ("probe", "memory", "W") if column in parts)
    number = re.search(r"W_[KOQV](\d)|(\d)$", name)
    return next(group for group in number.groups() if group) if number else LAYERS[name]


def same_names(table: pd.DataFrame) -> pd.DataFrame:
    """Heads named as today; the one head of a layer is called nothing, whatever its name."""
    of_probes = table["call"].str.startswith("probes.")
    table.loc[of_probes, "key"] = table.loc[of_probes, "key"].map(head_name)
    single = of_probes & ~table["run"].isin(["four-heads", "markov-2"])
    table.loc[single, "key"] = table.loc[single, "key"].str.replace(r"head=L\d+H\d+(>L\d+H\d+)?", "head=", regex=True)
    return table


def differences(frozen: pd.DataFrame, present: pd.DataFrame) -> pd.DataFrame:
    """The rows that differ: what ("missing", "new", "moved"), both values or words, their distance, and why."""
    both = same_names(frozen).merge(
        same_names(present), on=NAMING, how="outer", suffixes=("", "_now"), indicator="what", validate="1:1"
    )
    both["what"] = both["what"].map({"left_only": "missing", "right_only": "new", "both": "moved"}).astype(str)
    was, now = both["value"].to_numpy(float), both["value_now"].to_numpy(float)
    near = np.isclose(now, was, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    same = (both["what"] == "moved") & near & (both["text"] == both["text_now"])
    with np.errstate(invalid="ignore"):
        both["distance"] = np.abs(now - was)
    moved = both[~same]
    return moved.assign(why=reasons(moved))


def summary(moved: pd.DataFrame) -> pd.DataFrame:
    """One row per call, run, beginning of the key and column: how many, the largest difference, and an example."""
    moved = moved.assign(begins=moved["key"].str.split("|").str[0], size=moved["distance"].fillna(np.inf))
    rows = []
    for names, group in moved.groupby(["call", "run", "what", "begins", "column"], sort=False):
        largest = group.loc[group["size"].idxmax()]
        was = _shown(largest["value"], largest["text"])
        now = _shown(largest["value_now"], largest["text_now"])
        rows.append((*names, len(group), largest["distance"], f"step {largest['step']} {largest['key']}", was, now))
    columns = ["call", "run", "what", "begins", "column", "count", "largest", "example", "was", "now"]
    return pd.DataFrame(rows, columns=columns)


def _shown(value: float, text: object) -> str:
    return text if isinstance(text, str) and text else f"{value:.7g}"


def sorted_out(moved: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The differences that are explained, other rows that are new, and those that are faults."""
    known, new = moved["why"] != "", moved["what"] == "new"
    return moved[known], moved[~known & new], moved[~known & ~new]


def compare(only: Sequence[str] = (), runs: Sequence[str] = RUNS) -> tuple[pd.DataFrame, dict[str, str], int]:
    """The rows that differ, the calls that failed with their errors, and how many values were compared."""
    tables, failed = [], {}
    for call, run, table, _ in measured(only, runs):
        if isinstance(table, Exception):
            failed[f"{call} of {run}"] = f"{type(table).__name__}: {table}"
        else:
            tables.append(table)
    names = chosen(only)
    frozen = pd.read_parquet(FROZEN)
    for column in ("call", "run", "key", "column", "text"):
        frozen[column] = frozen[column].astype(str)
    about = {*runs, WHOLE} if set(runs) == set(RUNS) else set(runs)
    frozen = frozen[frozen["call"].isin(names) & frozen["run"].isin(about)]
    frozen = frozen[~(frozen["call"] + " of " + frozen["run"]).isin(list(failed))]
    if not tables:
        return differences(frozen.iloc[:0].copy(), frozen.iloc[:0].copy()), failed, 0
    return differences(frozen.copy(), pd.concat(tables, ignore_index=True)), failed, len(frozen)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=60, help="groups of differences to print")
    given = parser.parse_args()
    moved, failed, compared = compare(given.only, given.runs)
    for name, error in failed.items():
        print(f"FAILED {name}: {error}")
    known, new, moved = sorted_out(moved)
    for call, count in new["call"].value_counts().items():
        print(f"{count} values are new in {call}")
    for why, count in known["why"].value_counts().items():
        print(f"{count} values moved: {why}")
    if len(moved):
        found = summary(moved).sort_values(["call", "run", "what"], kind="stable")
        print(found.head(given.rows).to_string(index=False))
        print(f"{len(found)} groups, {moved['what'].value_counts().to_dict()}")
    print(f"{compared} frozen values compared, {len(known)} moved for known reasons")
    print(f"{len(moved)} moved for no known reason, {len(failed)} calls failed")
    raise SystemExit(bool(len(moved) or failed))


if __name__ == "__main__":
    main()
