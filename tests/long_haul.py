"""`python -m tests.long_haul FOLDER STEPS`: train a tiny run, and print memory and open files at a hundred steps of it.

One line per reading: step, kilobytes of resident memory, open file handles.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tests.tiny_runs import tiny

PAGE = os.sysconf("SC_PAGE_SIZE") // 1024


def main(folder: str, steps: int) -> None:
    from induction_memory.training.run import start
    from induction_memory.trajectory.writer import Writer

    record, every = Writer.record, steps // 100

    def recorded(self: Writer, step: int, *rest: Any, **named: Any) -> None:
        record(self, step, *rest, **named)
        if step % every == 0:
            memory = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
            print(step, memory, len(list(Path("/proc/self/fd").iterdir())), flush=True)

    Writer.record = recorded
    rule = f"every {steps // 10}"
    config = tiny(steps=steps, learning_rate=0.01, checkpoints=rule, resume_every=200, full_metrics_every=100)
    start(config, Path(folder), progress=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
