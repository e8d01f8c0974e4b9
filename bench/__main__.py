"""Print the table of what the toolkit must reach, measured here and now: `python -m bench [NAME ...]`."""

import importlib
import subprocess
import sys
import time
from statistics import median

MODULES = ("sampler", "training", "probes", "why", "interventions", "waiting", "page", "series", "sweep")


def start_up_rows(repeats: int = 5) -> list[dict]:
    """`induction-memory --help` against an empty Python program."""

    def seconds(*command: str) -> float:
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        return median(times)

    empty, answer = seconds("-c", "pass"), seconds("-m", "induction_memory", "--help")
    work = "induction-memory --help (seconds; python -c pass beside it)"
    return [{"work": work, "baseline_seconds": empty, "seconds": answer, "at_least": "0.5 s", "aim": "0.25 s"}]


def main() -> None:
    chosen = sys.argv[1:] or [*MODULES, "start-up"]
    print(f"{'work':<72} {'baseline':>10} {'here':>10} {'reached':>9} {'at least':>9} {'aim':>7}")
    for name in chosen:
        rows = start_up_rows() if name == "start-up" else importlib.import_module(f"bench.{name}").rows()
        for row in rows:
            print(format_row(row), flush=True)


def format_row(row: dict) -> str:
    def seconds(key: str) -> str:
        value = row.get(key)
        return f"{value:.4f} s" if isinstance(value, float) else str(value or "")

    reached = row.get("ratio", "")
    reached = f"{reached:.1f}x" if isinstance(reached, float) else str(reached)
    return (
        f"{row['work']:<72} {seconds('baseline_seconds'):>10} {seconds('seconds'):>10} {reached:>9} "
        f"{row.get('at_least', '')!s:>9} {row.get('aim', '')!s:>7}"
    )


if __name__ == "__main__":
    main()
