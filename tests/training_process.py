"""Real processes that write runs and can be killed, without paying for the imports each time.

`python -m tests.training_process` imports everything once. For a line "JOB FOLDER ARGUMENT", between tabs, on its
standard input it forks a process that does (or goes on with) the job in that folder, and prints the process's number;
for the line "wait" it waits for that process and prints how it ended. Until then the number stands for no other
process.
"""

import os
import subprocess
import sys
import traceback
from pathlib import Path

from tests.tiny_runs import tiny

PROBES = ["W_K1", "W_K2", "W_O2", "norm_W_O2", "W_K1_margin", "W_O2_margin"]
KEPT = [0, 6, 36, 60]


def config_of(steps: int):
    return tiny(steps=steps, batch_size=16, resume_every=5, checkpoints="every 1 to 6 then every 9")


def train(folder: Path, steps: str) -> None:
    from induction_memory.training.run import start

    start(config_of(int(steps)), folder, resume="or start", progress=False)


def branch(folder: Path, parent: str) -> None:
    from induction_memory import load
    from induction_memory.training.branching import branch

    branch(load(parent), 36, folder, freeze=["W_K1"], resume="or start", progress=False)


def thin(folder: Path, parent: str) -> None:
    from induction_memory import load, thin

    if not (folder / "manifest.json").exists():  # which comes last: with it the folder is whole
        thin(load(parent), folder, KEPT)


def probe(folder: Path, _: str) -> None:
    from induction_memory import load, probes

    probes.table(load(folder), PROBES)


JOBS = {job.__name__: job for job in (train, branch, thin, probe)}


class Worker:
    """The other end: starts a process that does a job, to be killed or waited for."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.training_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        assert self._read() == "ready"

    def start(self, job: str, folder: Path, argument: str | int | Path) -> int:
        """Start a job in a folder; the process's number."""
        return int(self._ask(f"{job}\t{folder}\t{argument}"))

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
    from induction_memory import probes
    from induction_memory.model.building import build
    from induction_memory.training import branching, forward, run

    assert all((probes.table, build, branching, forward, run))  # imported before the first fork
    print("ready", flush=True)
    child = 0
    for line in sys.stdin:
        if line.strip() == "wait":
            print(os.waitpid(child, 0)[1], flush=True)
            continue
        job, folder, argument = line.rstrip("\n").split("\t")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                JOBS[job](Path(folder), argument)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        print(child, flush=True)


if __name__ == "__main__":
    main()
