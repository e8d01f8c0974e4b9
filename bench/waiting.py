"""Calls that a person waits for, on shipped runs, against `python -c "import torch"` measured in the same minute.

Each call runs once in a process of its own, in which torch has been imported before the clock starts.
"""

import subprocess
import sys

from bench.interventions import seconds_of

CALLS = {
    "discover(induction-alone)": "im.interventions.discover(im.load('induction-alone'))",
    "ablate(induction-alone)": "im.ablate(im.load('induction-alone'))",
    "ablate(induction-alone, kind='all')": "im.ablate(im.load('induction-alone'), kind='all')",
    "table(induction-alone, 'all'), not cached": "im.probes.table(im.load('induction-alone'), 'all', cached=False)",
    "ablate(four-heads, heads='all')": "im.ablate(im.load('four-heads'), heads='all')",
    "causal_trajectory(induction-alone)": "im.interventions.causal_trajectory(im.load('induction-alone'))",
    "identify(four-heads)": "im.identify(im.load('four-heads'))",
}


def rows() -> list[dict]:
    """The benchmark table's rows on waiting."""
    result = []
    for name, call in CALLS.items():
        baseline = seconds_of(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True))
        seconds = _seconds(call)
        row = {"work": f"{name} (python -c 'import torch' beside it)", "baseline_seconds": baseline}
        result.append(row | {"seconds": seconds, "ratio": seconds / baseline})
    return result


def _seconds(call: str) -> float:
    clock = "time.perf_counter()"
    program = f"import time, torch, induction_memory as im; began = {clock}; {call}; print({clock} - began)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])
