"""How a sweep of 10,000 runs behaves, with stubs that train nothing: `python -m bench.sweep_scale [RUNS]`.

A stub leaves what a finished run leaves for the sweep to read (its manifest and its metrics, flushed to the disk), so
that starting the sweep again and making its table are the real thing. Measured are the pool and a Dask cluster with two
workers on this machine. `python -m bench.sweep_scale kills` gives 3,000 jobs that only leave a file to such a cluster
while a worker is killed every 20 s. With `--write` the table of docs/sweeps.md is replaced by what was measured.
"""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from induction_memory import files
from induction_memory.experiment.run_config import RunConfig
from induction_memory.sweep import results
from induction_memory.sweep.job import Engine, Job
from induction_memory.sweep.loop import COPY, engine, job_of, look, work_off
from induction_memory.sweep.plan import PlannedRun, read
from induction_memory.trajectory import rows
from induction_memory.trajectory.manifest import METRICS, Manifest, provenance

PAGE = Path(__file__).parents[1] / "docs" / "sweeps.md"
BEGIN, END = "<!-- measured by bench.sweep_scale -->", "<!-- end of it -->"
STEPS = 20
TINY = """
[set]
task.length = 16
model.n_ctx = 16
model.d_model = 16
train.batch_size = 8
train.steps = {steps}
"""


def stub(config: dict[str, Any], out: str, command: str) -> None:
    """Leave the manifest and the metrics of a finished run."""
    folder = Path(out)
    files.make_folder(folder)
    manifest = Manifest(state="finished", config=config, seconds=0.0, **provenance(command, 1))
    done = [{"step": step, "loss": 1.0 / (step + 1), "checkpoint": True} for step in range(STEPS + 1)]
    files.write_file(folder / METRICS, b"".join(rows.encode(row, manifest.key) for row in done))
    manifest.write(folder)


def sweep_file(folder: Path, runs: int) -> Path:
    seeds = -(-runs // 100)
    text = f'preset = "demo"\nseeds = {list(range(seeds))}\n' + TINY.format(steps=STEPS)
    rates = [round(0.01 * (i + 1), 2) for i in range(min(runs, 100))]
    (folder / COPY).write_text(text + f"[grid]\ntrain.learning_rate = {rates}\n")
    return folder / COPY


def work(planned: tuple[PlannedRun, ...], folder: Path, make: Callable[[], Engine]) -> str:
    """Work off stubs of all runs, starting again where some failed; what it took."""
    left = [replace(job_of(run, folder), work="bench.sweep_scale:stub") for run in planned]
    began, again = time.perf_counter(), []
    while left:
        ended = work_off(left, make(), progress=False)
        left = [job for job in left if ended[job.name].state != "done"]
        again += [len(left)] if left else []
    took = time.perf_counter() - began
    failed = f", started again for {' and '.join(map(str, again))} failed runs" if again else ""
    return f"{took:.0f} s, {len(planned) / took:.0f} runs/s{failed}"


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """A scheduler and two workers, each a process: the scheduler's address and process number."""
    file = folder / "scheduler.json"
    here = ["--scheduler-file", str(file), "--no-dashboard", "--host", "127.0.0.1"]
    once = ["--nthreads", "1", "--local-directory", str(folder)]
    commands = [["scheduler", *here, "--port", "0"], *[["worker", *here, *once] for _ in range(2)]]
    processes = []
    for name, *arguments in commands:
        module = [sys.executable, "-m", f"distributed.cli.dask_{name}", *arguments]
        processes.append(subprocess.Popen(module, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        while not file.exists():
            time.sleep(0.05)
    try:
        yield json.loads(file.read_text())["address"], processes[0].pid
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


@contextmanager
def killer(address: str, pause: float) -> Iterator[list[int]]:
    """Kill one worker process every few seconds; the nannies start new ones. The processes that were killed."""
    from distributed import Client

    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        chance = random.Random(0)
        with Client(address, set_as_default=False) as client:
            while not over.wait(pause):
                there: Any = client.run(os.getpid, on_error="ignore")
                if there:
                    killed.append(chance.choice(sorted(there.values())))
                    os.kill(killed[-1], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def usage(process: int) -> tuple[float, float]:
    """CPU seconds and largest memory in MB of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks, int(status["VmHWM"].split()[0]) / 1e3


def operations() -> dict[str, int]:
    """Disk operations and files of one real run of 600 steps with the usual checkpoints, counted by the writer."""
    from induction_memory.experiment.presets import preset
    from induction_memory.training.run import start

    places: dict[str, Any] = {"write": files, "fsync": os, "replace": os}
    counts = dict.fromkeys(places, 0)
    originals = {name: getattr(place, name) for name, place in places.items()}

    def counted(name: str) -> Any:
        def operation(*arguments: Any) -> None:
            counts[name] += 1
            originals[name](*arguments)

        return operation

    small = [f"{line.replace(' ', '')}" for line in TINY.format(steps=600).splitlines() if "=" in line]
    config: RunConfig = preset("demo").config.with_settings([*small, "train.threads=1"])
    with tempfile.TemporaryDirectory() as folder:
        for name in counts:
            setattr(places[name], name, counted(name))
        try:
            start(config, Path(folder) / "run", progress=False)
        finally:
            for name, original in originals.items():
                setattr(places[name], name, original)
        count = sum(path.is_file() for path in Path(folder).rglob("*"))
    return {"writes": counts["write"], "flushes": counts["fsync"], "renames": counts["replace"], "files": count}


def kills(jobs: int = 3_000, pause: float = 20.0) -> None:
    """Jobs on a cluster whose workers are killed: how many end how, and how often each ran."""
    with tempfile.TemporaryDirectory() as place, cluster(Path(place)) as (address, _):
        folders = [Path(place) / "jobs" / str(number) for number in range(jobs)]
        given = [Job(folder.name, "bench.sweep_scale:leave", {"folder": str(folder)}, folder) for folder in folders]
        began = time.perf_counter()
        with killer(address, pause) as killed:
            ended = work_off(given, engine(scheduler=address), progress=False)
        took = time.perf_counter() - began
        states = Counter(outcome.state for outcome in ended.values())
        times = Counter(len(list(folder.iterdir())) for folder in folders)
    say(f"Dask, two workers, one killed every {pause:.0f} s ({len(killed)} kills)", f"{took:.0f} s, {dict(states)}")
    say("    jobs by the number of times they ran", ", ".join(f"{n}: {times[n]}" for n in sorted(times)))


def leave(folder: str) -> None:
    """Leave a file."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, str(time.monotonic_ns())).touch()


SAID: list[tuple[str, str]] = []


def say(what: str, value: str) -> None:
    SAID.append((what, value))
    print(f"{what:<66} {value}", flush=True)


def write_page() -> None:
    """Replace the table in docs/sweeps.md by what was said."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [f"| {what.strip()} | {value} |" for what, value in SAID]
    table = "\n".join(["| what | measured |", "| --- | --- |", *lines])
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def main(runs: int = 10_000) -> None:
    say("load of the machine at the start, and its cores", f"{os.getloadavg()[0]:.1f}, {os.cpu_count()}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        planned = read(sweep_file(folder, runs)).runs
        say(f"read the file and check {len(planned):,} configurations", f"{time.perf_counter() - began:.1f} s")
        say("pool, two workers", work(planned, folder, lambda: engine(2)))
        own = usage(os.getpid())
        say("    the sweep itself, reading the file included", f"{own[0]:.0f} s of CPU, {own[1]:.0f} MB at most")
        began = time.perf_counter()
        assert set(look(planned, folder).values()) == {"done"}
        say("start it again: look at every manifest", f"{time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        assert len(results.table(folder)) == len(planned)
        say("sweep.table", f"{time.perf_counter() - began:.1f} s")
    with tempfile.TemporaryDirectory() as place, cluster(Path(place)) as (address, scheduler):
        say("Dask, two workers", work(planned, Path(place) / "runs", partial(engine, scheduler=address)))
        cpu, memory = usage(scheduler)
        say("    the scheduler", f"{cpu:.0f} s of CPU, {memory:.0f} MB at most")
    counted = operations()
    say("disk operations of one real run of 600 steps", ", ".join(f"{n} {name}" for name, n in counted.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    say("the whole measurement with torch, one process", f"{peak:.0f} MB at most")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--write"]
    if words == ["kills"]:
        kills()
    else:
        main(*map(int, words[:1]))
        if "--write" in sys.argv:
            write_page()
