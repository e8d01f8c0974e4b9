"""Eight short runs on one worker and on two, as `sweep` trains them."""

import tempfile
import time
from pathlib import Path

from induction_memory.sweep.loop import start

STEPS = 200
FILE = f"""
preset = "demo"
seeds = [0, 1, 2, 3, 4, 5, 6, 7]
[set]
train.steps = {STEPS}
"""


def seconds(workers: int) -> float:
    """Time of the whole sweep, the start of its processes included."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.toml"
        file.write_text(FILE)
        began = time.perf_counter()
        ended = start(file, Path(folder) / "runs", workers=workers, progress=False)
        assert len(ended.done) == 8
        return time.perf_counter() - began


def rows() -> list[dict]:
    """The benchmark table's row on sweeps."""
    one, two = seconds(1), seconds(2)
    work = f"sweep: 8 runs of demo for {STEPS} steps on two workers, against one"
    times = {"baseline_seconds": one, "seconds": two, "ratio": one / two}
    return [{"work": work, "at_least": "1.6x", "aim": "1.8x"} | times]
