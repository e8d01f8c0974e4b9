"""A real scheduler and two worker processes on loopback: workers, clients and schedulers die, and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from induction_memory.errors import Error, InputError
from induction_memory.sweep.cluster import Cluster
from induction_memory.sweep.job import Outcome
from induction_memory.sweep.loop import start, work_off
from induction_memory.sweep.plan import read
from tests.sweep import stubs
from tests.sweep.stubs import calls, job
from tests.sweep.test_loop import is_free, wait_for
from tests.sweep.tiny_sweep import contents, finished, is_in_the_middle, write

pytestmark = [pytest.mark.slow, pytest.mark.loopback]


class Machines:
    """A scheduler and its workers, each a process of its own."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.file, self.folder = folder / "scheduler.json", folder
        here = ["--scheduler-file", str(self.file), "--no-dashboard"]
        listen = ["--host", "127.0.0.1", "--port", "0"]
        self.scheduler = self._process("distributed.cli.dask_scheduler", *here, *listen)
        wait_for(self.file.exists)
        only = ["--nthreads", "1", "--local-directory", str(folder), "--host", "127.0.0.1"]
        self.workers = [self._process("distributed.cli.dask_worker", *here, *only) for _ in range(workers)]
        self.address = json.loads(self.file.read_text())["address"]

    def _process(self, module: str, *arguments: str) -> subprocess.Popen:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([sys.executable, "-m", module, *arguments], **quiet)

    def worker_processes(self) -> list[int]:
        """The processes that work, which are children of their nannies."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(2)
            return list(client.run(os.getpid).values())

    def retire_the_busy_worker(self) -> None:
        """Close a worker as the end of its lifetime does."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            busy = [worker for worker, keys in client.processing().items() if keys]
            client.retire_workers(busy, close_workers=True)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.terminate()
        for process in (*self.workers, self.scheduler):
            process.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Started once: the last test that uses them kills the scheduler."""
    machines = Machines(tmp_path_factory.mktemp("machines"))
    yield machines
    machines.close()


def test_killed_workers_and_a_killed_client_cost_no_bit_and_no_finished_run(machines, serial, tmp_path):
    file, out = write(tmp_path), tmp_path / "out"
    names = [run.name for run in read(file).runs]
    workers = machines.worker_processes()
    client = subprocess.Popen([sys.executable, "-m", "tests.sweep.stubs", str(file), str(out), machines.address])
    wait_for(lambda: any(is_in_the_middle(out / name) for name in names))
    os.kill(workers[0], signal.SIGKILL)
    wait_for(lambda: finished(out))
    before = finished(out)
    wait_for(lambda: any(is_in_the_middle(out / name) for name in names if name not in finished(out)))
    client.kill()
    client.wait()
    before |= finished(out)
    wait_for(lambda: all(is_free(out / name) for name in names if (out / name).exists()))
    before |= finished(out)
    assert 0 < len(before) < 4
    ended = start(file, out, scheduler=machines.address)
    assert set(ended.skipped) == set(before)
    assert not ended.failed
    assert contents(read(file).runs, out) == serial
    assert finished(out).items() >= before.items()


def test_jobs_end_as_in_a_pool_and_a_lost_scheduler_is_told_in_one_line(machines, tmp_path, capfd):
    jobs = [job(f"good-{i}", tmp_path) for i in range(6)]
    jobs += [job("wrong", tmp_path, stubs.mistake), job("killed", tmp_path, stubs.die, times=1)]
    ended = work_off(jobs, Cluster(machines.address), progress=False)
    assert {name: outcome.state for name, outcome in ended.items()} == {
        one.name: "mistake" if one.name == "wrong" else "done" for one in jobs
    }
    assert {one.name: len(calls(one.folder)) for one in jobs} == {one.name: 1 for one in jobs} | {"killed": 2}

    moved = Cluster(machines.address)
    moved.submit(job("moved", tmp_path, stubs.hold_at_first))
    wait_for(lambda: len(calls(tmp_path / "moved")) == 1)
    machines.retire_the_busy_worker()
    assert moved.next(600.0) == ("moved", Outcome("done"))
    assert len(calls(tmp_path / "moved")) == 2
    moved.close()

    stopped = Cluster(machines.address)  # closing it, as Ctrl-C does, stops the run and frees its folder
    stopped.submit(job("held", tmp_path, stubs.hold, seconds=600.0))
    wait_for(lambda: (tmp_path / "held" / ".lock").exists())
    wait_for(lambda: stopped.running() == {"held"})
    stopped.close()
    wait_for(lambda: is_free(tmp_path / "held"))

    on = Cluster(machines.address)
    on.submit(job("other", tmp_path, stubs.hold, seconds=600.0))
    wait_for(lambda: (tmp_path / "other" / ".lock").exists())
    machines.scheduler.kill()
    with pytest.raises(Error, match=r"scheduler at tcp.* is gone; what was done is kept, and the same command"):
        work_off([job("third", tmp_path)], on, progress=False)
    wait_for(lambda: is_free(tmp_path / "other"))
    assert capfd.readouterr() == ("", "")
    with pytest.raises(InputError, match="--scheduler: expected the address of a Dask scheduler, got"):
        Cluster(machines.address)


def test_a_wrong_address_is_refused_at_once(tmp_path):
    for address in ("nonsense://", "127.0.0.1:x"):
        with pytest.raises(InputError, match="--scheduler: expected the address of a Dask scheduler, got"):
            start(write(tmp_path), tmp_path / "out", scheduler=address)


def recipe() -> str:
    """The script for Slurm in docs/sweeps.md."""
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    (script,) = [part.partition("```")[0] for part in text.split("```python\n") if "SLURMCluster" in part]
    return script


def test_the_recipe_for_slurm_looks_for_sbatch_first(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-c", recipe()], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "slurm: expected a machine with sbatch, got none\n"


@pytest.mark.hard
def test_the_recipe_for_slurm_starts_workers_that_work(tmp_path):
    """With a stand-in for Slurm that runs each job here, at once."""
    for name, text in {
        "sbatch": 'bash "$1" >/dev/null 2>&1 &\necho Submitted batch job $!',
        "scancel": "kill $1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [sys.executable, "-c", recipe().replace("jobs=40", "jobs=1").replace("cores=1,", 'cores=1, interface="lo",')],
        env=os.environ | {"PATH": path, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        ended = work_off([job(name, tmp_path / "out") for name in "abc"], Cluster(address), progress=False)
        assert {outcome.state for outcome in ended.values()} == {"done"}
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


@pytest.mark.hard
def test_the_steps_of_a_series_are_measured_by_two_dask_workers_of_which_one_is_killed(tmp_path):
    import pandas as pd

    import induction_memory as im
    from induction_memory.sweep import Workers
    from tests.trajectory.series import write_series

    folder = write_series("neox", tmp_path / "series", range(20))
    machines = Machines(tmp_path)
    try:
        kept, killed = tmp_path / "there", []

        def kill_once(done, every):
            if not killed and done >= 3:
                killed.append(machines.worker_processes()[0])
                os.kill(killed[0], signal.SIGKILL)

        how = {"heads": "all", "kind": ["zero", "mean"], "step": "all"}
        there, here = (im.revisions(folder, keep=tmp_path / place) for place in ("there", "here"))
        shared = im.ablate(there, engine=Workers(scheduler=machines.address), progress=kill_once, **how)
        assert killed
        assert len(list(kept.iterdir())) == 20
    finally:
        machines.close()
    pd.testing.assert_frame_equal(im.ablate(here, **how), shared, check_exact=True)
