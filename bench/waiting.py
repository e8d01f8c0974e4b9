"""Calls that a person waits for, on shipped runs, against `python -c "import torch"` measured in the same minute.

Processor seconds of one thread, because these do not depend on what else the machine does. Each call runs once in a
process of its own, in which torch has been imported before the clock starts, on copies of the runs without results
kept from before. `at least` is the ratio that must not be exceeded, half of what the call took before it was made
quicker (discover 58.1 s, ablate 24.6 s, table 20.6 s, ablate of four heads 15.1 s, causal_curves 6.8 s, identify 9.8 s,
beside 1.4 s for `import torch`, all measured in one quarter of an hour). It was a third; the difference is what code
that one can read may cost. The causal trajectory had heads and memories then, and attributions were not yet sums over
paths. With these, both have a line without a limit.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from induction_memory.trajectory.search import SHIPPED

BEFORE, IMPORT = {"discover": 58.1, "ablate": 24.6, "table": 20.6, "heads": 15.1, "causal": 6.8, "identify": 9.8}, 1.4
RUNS = ("induction-alone", "four-heads")
CALLS = {
    "discover(induction-alone)": ("discover", "im.interventions.discover(im.load('induction-alone'))"),
    "ablate(induction-alone)": ("ablate", "im.ablate(im.load('induction-alone'))"),
    "ablate(induction-alone, kind='all')": ("ablate", "im.ablate(im.load('induction-alone'), kind='all')"),
    "table(induction-alone) without attributions": (
        "table",
        "im.probes.table(im.load('induction-alone'), ['recall', 'weights', 'composition', 'attention', 'prediction', "
        "'predictors', 'sources'])",
    ),
    "table(induction-alone, 'all')": ("", "im.probes.table(im.load('induction-alone'), 'all')"),
    "ablate(four-heads, heads='all')": ("heads", "im.ablate(im.load('four-heads'), heads='all')"),
    "causal_curves(induction-alone) of heads and memories": (
        "causal",
        "im.interventions.causal_curves(im.load('induction-alone'), components=['heads', 'W_K1', 'W_K2', 'W_O2'])",
    ),
    "causal_curves(induction-alone) with paths": (
        "",
        "im.interventions.causal_curves(im.load('induction-alone'))",
    ),
    "identify(four-heads)": ("identify", "im.heads.identify(im.load('four-heads'))"),
}


def rows() -> list[dict]:
    """The benchmark table's rows on waiting."""
    result = []
    for name, (before, call) in CALLS.items():
        baseline, seconds = _import_torch(), _seconds(call)
        row = {"work": f"{name} (processor seconds; python -c 'import torch' beside it)"}
        row |= {"baseline_seconds": baseline, "seconds": seconds, "ratio": seconds / baseline}
        result.append(row | ({"at_least": f"<= {BEFORE[before] / 2 / IMPORT:.1f}x"} if before else {}))
    return result


def _import_torch() -> float:
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run("import torch")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime


def _seconds(call: str) -> float:
    clock = "time.process_time()"
    with tempfile.TemporaryDirectory() as folder:
        for run in RUNS:
            shutil.copytree(SHIPPED / run, Path(folder, run), ignore=shutil.ignore_patterns(".cache"))
        program = f"import time, torch, induction_memory as im; began = {clock}; {call}; print({clock} - began)"
        return float(_run(program, folder))


def _run(program: str, folder: str | None = None) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command, how = [sys.executable, "-c", program], {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run(command, check=True, cwd=folder, **how)
    return done.stdout.split()[-1] if done.stdout else ""
