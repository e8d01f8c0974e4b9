"""Freeze what the package measures on the shipped runs: one long table, one row per number or word.

    python -m tests.frozen.freeze --out FILE [--only CALL ...] [--runs RUN ...] [--keep]

Columns: call, run, step (-1 where a row has none), key (`probe=W_O2|head=0>1`), column, value, and text where the
column holds words. `numbers.parquet` was made before the package was restructured, compare.py says what has moved.
The rows of `four-heads`, `layernorm-mlp`, `vanilla-fixed` and `vanilla-random`, and those of the claims, were taken
again (`--keep`) when these runs were trained for longer and shipped anew.
The runs are read through links in a temporary folder, so that no result kept beside them is taken for a new one.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

import induction_memory as im
from tests.frozen.calls import OF_ALL, OF_RUNS, RUNS, WHOLE, Call, some_steps

COLUMNS = ["call", "run", "step", "key", "column", "value", "text"]
NAMING = COLUMNS[:5]


def chosen(only: Sequence[str]) -> list[str]:
    """The calls with these names or beginnings (`probes` for all `probes.*`); every call if none is given."""
    names = [*OF_RUNS, *OF_ALL]
    for name in only:
        if not any(matches(full, name) for full in names):
            raise SystemExit(f"--only: expected one of {', '.join(names)}, or a beginning, got {name!r}")
    return [full for full in names if not only or any(matches(full, name) for name in only)]


def matches(full: str, name: str) -> bool:
    return full == name or full.startswith(f"{name}.")


def long(call: str, run: str, table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """A table of a call as one row per number or word."""
    named = [name for name in keys if name in table]
    key = pd.Series("", index=table.index)
    for name in named:
        key += ("|" if name != named[0] else "") + name + "=" + table[name].map(_label)
    step = table["step"].fillna(-1).astype(int) if "step" in table else pd.Series(-1, index=table.index)
    refused = table["refused"].notna() if "refused" in table else pd.Series(False, index=table.index)
    parts = []
    for column in table.columns.difference([*named, "step"], sort=False):
        values, words = table[column], pd.Series("", index=table.index)
        if not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values)):
            values, words = pd.Series(float("nan"), index=table.index), values.fillna("").astype(str)
        cells = {"call": call, "run": run, "step": step, "key": key, "column": column}
        part = pd.DataFrame(cells | {"value": values.astype(float), "text": words})
        parts.append(part[refused if column == "refused" else ~refused])
    whole = pd.concat(parts, ignore_index=True)[COLUMNS]
    doubled = whole[whole.duplicated(NAMING)]
    if len(doubled):
        raise ValueError(f"{call}: expected keys that name one row, got {doubled['key'].iloc[0]} twice in {run}")
    return whole


def _label(value: object) -> str:
    """A name in a key: whole numbers without a point, nothing for nan."""
    if isinstance(value, float):
        return "" if value != value else f"{value:g}"
    return str(value)


def linked(name: str, folder: Path) -> Path:
    """The files of a shipped run, without what is kept beside it."""
    run = folder / name
    run.mkdir()
    for path in (Path(__file__).parents[2] / "checkpoints" / name).resolve().iterdir():
        if path.is_file():
            (run / path.name).symlink_to(path)
    return run


def measured(
    only: Sequence[str] = (), runs: Sequence[str] = RUNS
) -> Iterator[tuple[str, str, pd.DataFrame | Exception, float]]:
    """Call, run, its long table (or the error it raised) and the seconds it took."""
    torch.set_num_threads(1)
    names = chosen(only)
    with tempfile.TemporaryDirectory() as folder:
        for name in runs:
            run = im.load(linked(name, Path(folder)))
            for call in names:
                if call in OF_RUNS:
                    yield _timed(call, name, OF_RUNS[call], run)
        for call in names:
            if call in OF_ALL and set(runs) == set(RUNS):
                yield _timed(call, WHOLE, OF_ALL[call], None)


def _timed(name: str, run_name: str, call: Call, run) -> tuple[str, str, pd.DataFrame | Exception, float]:
    start = time.process_time()
    try:
        try:
            table = call.measure(run, [] if run is None else some_steps(run))
        except im.errors.InputError:
            table = pd.DataFrame({"refused": ["yes"]})
        result = long(name, run_name, table, call.keys)
    except Exception as error:  # told by the caller: one call that was renamed does not hide the others
        result = error
    return name, run_name, result, time.process_time() - start


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="calls, or beginnings of their names")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS, metavar="RUN", help="shipped runs")
    return parser


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="keep the rows of FILE about other calls and runs")
    given = parser.parse_args()
    tables = []
    for call, run, table, seconds in measured(given.only, given.runs):
        if isinstance(table, Exception):
            raise RuntimeError(f"{call} of {run} failed") from table
        print(f"{call:22} {run:18} {len(table):7} values {seconds:6.1f} s", flush=True)
        tables.append(table)
    whole = pd.concat(tables, ignore_index=True)
    if given.keep:
        old = pd.read_parquet(given.out).astype(dict.fromkeys(("call", "run", "key", "column", "text"), str))
        again = pd.MultiIndex.from_frame(old[["call", "run"]]).isin(pd.MultiIndex.from_frame(whole[["call", "run"]]))
        whole = pd.concat([old[~again], whole], ignore_index=True)
    for name in ("call", "run", "key", "column", "text"):
        whole[name] = whole[name].astype("category")
    whole.to_parquet(given.out, index=False, compression="zstd")
    print(f"{len(whole)} values, {given.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
