"""Real training processes that can be killed, without paying for the imports each time.

`python -m tests.training_process` imports everything once. For a line "FOLDER STEPS" on its standard input it forks a
process that trains (or resumes) a tiny run in that folder, and prints the process's number; for the line "wait" it
waits for that process and prints how it ended. Until then the number stands for no other process.
"""

import os
import subprocess
import sys
import traceback
from pathlib import Path

from tests.tiny_runs import tiny


def config_of(steps: int):
    return tiny(steps=steps, batch_size=16, resume_every=5, checkpoints="every 1 to 6 then every 9")


class Trainer:
    """The other end: starts a training process, to be killed or waited for."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert self._read() == "ready"

    def start(self, folder: Path, steps: int) -> int:
        """Start training in a folder; the process's number."""
        return int(self._ask(f"{folder} {steps}"))

    def status(self) -> int:
        """How it ended: 0 if it came to its end, minus the signal's number if it was killed."""
        return os.waitstatus_to_exitcode(int(self._ask("wait")))

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> None:
    from induction_memory.model.building import build
    from induction_memory.training import forward, run

    assert build
    assert forward
    print("ready", flush=True)
    child = 0
    for line in sys.stdin:
        if line.strip() == "wait":
            print(os.waitpid(child, 0)[1], flush=True)
            continue
        folder, steps = line.rsplit(" ", 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run.start(config_of(int(steps)), Path(folder), resume="or start", quiet=True)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(child, flush=True)


if __name__ == "__main__":
    main()
