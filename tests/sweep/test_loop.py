"""What is run again and what is not, with jobs that train nothing."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from induction_memory.errors import Stopped
from induction_memory.sweep import loop
from induction_memory.sweep.board import Board, clock, share_done
from induction_memory.sweep.job import Child, Outcome, Pool
from induction_memory.sweep.loop import work_off
from induction_memory.trajectory.lock import BusyError, locked
from tests.sweep import stubs
from tests.sweep.stubs import calls, job


def is_free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except BusyError:
        return False


def wait_for(condition, seconds: float = 600) -> None:
    """Far longer than it takes, so that a hang ends; nothing depends on the time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_every_job_runs_once_whatever_becomes_of_the_others(tmp_path, capfd):
    jobs = [job(f"good-{i}", tmp_path) for i in range(6)]
    jobs += [job("wrong", tmp_path, stubs.mistake), job("broken", tmp_path, stubs.crash)]
    jobs += [job("killed", tmp_path, stubs.die, times=1), job("doomed", tmp_path, stubs.die, times=99)]
    ended = work_off(jobs, Pool(2))
    assert {name for name in ended if ended[name].state == "done"} == {*(f"good-{i}" for i in range(6)), "killed"}
    assert ended["wrong"] == Outcome("mistake", "task.k: expected less, got more")
    assert re.fullmatch(r"RuntimeError: two lines \(stubs.py, line \d+\)", ended["broken"].error)
    assert ended["doomed"].error.startswith("its process was killed by SIGKILL")
    ran = {one.name: len(calls(one.folder)) for one in jobs}
    assert ran == {one.name: 1 for one in jobs} | {"killed": 2, "doomed": loop.ATTEMPTS}
    told = capfd.readouterr().err.splitlines()
    assert len(told) == loop.ATTEMPTS
    assert all("killed by SIGKILL" in line for line in told)


def test_two_workers_work_at_the_same_time_with_one_thread_each(tmp_path):
    jobs = [job(name, tmp_path, stubs.hold, seconds=600.0) for name in "ab"]
    pool = Pool(2)
    for one in jobs:
        pool.submit(one)
    wait_for(lambda: all((one.folder / ".lock").exists() for one in jobs))
    assert pool.running() == {"a", "b"}
    pool.close()
    assert work_off([job("c", tmp_path, stubs.threads)], Pool(1))["c"].state == "done"
    assert (tmp_path / "c" / "threads").read_text() == "1"


def test_a_folder_that_another_process_holds_is_waited_for(tmp_path, capfd):
    other = Child()
    thread = threading.Thread(
        target=other.run, args=(job("held", tmp_path, stubs.hold_until_run, other=str(tmp_path / "free")),)
    )
    thread.start()
    wait_for(lambda: (tmp_path / "held" / ".lock").exists())
    ended = work_off([job("held", tmp_path, stubs.hold, seconds=0.0), job("free", tmp_path)], Pool(1))
    assert list(ended) == ["free", "held"]  # what can be done is done first
    assert {outcome.state for outcome in ended.values()} == {"done"}
    assert capfd.readouterr().err.count(f"got process {other.pid} on ") == 1
    thread.join()
    other.kill()


def test_a_child_ends_with_its_owner_and_frees_the_folder(tmp_path):
    script = (
        "import sys; from pathlib import Path; from tests.sweep import stubs; from induction_memory.sweep.job import "
        "Child; child = Child(); print(child.pid, flush=True); child.run(stubs.job('held', Path(sys.argv[1]), "
        "stubs.hold, seconds=600.0))"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    wait_for(lambda: (tmp_path / "held" / ".lock").exists())
    assert not is_free(tmp_path / "held")
    owner.kill()
    owner.communicate()
    wait_for(lambda: is_free(tmp_path / "held"))
    wait_for(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_running_jobs_and_starts_no_other(tmp_path, number):
    jobs = [job(f"held-{i}", tmp_path, stubs.hold, seconds=600.0) for i in range(3)]

    def send() -> None:
        wait_for(lambda: (tmp_path / "held-0" / ".lock").exists())
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(Stopped) as stopped:
        work_off(jobs, Pool(1))
    thread.join()
    assert stopped.value.number == number
    assert signal.getsignal(number) == before
    assert is_free(tmp_path / "held-0")
    assert not (tmp_path / "held-1").exists()


class SignalledDestructor:
    """A job whose end is looked for while an object dies, in whose destructor the signal comes."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # Python looks for signals between two turns
            pass


class NeverEnds:
    """An engine without results; the first look at it meets the signal in a destructor."""

    looks, closed = 0, False

    def submit(self, job) -> None:
        pass

    def next(self, timeout):
        self.looks += 1
        if self.looks == 1:
            SignalledDestructor()
        return

    def running(self):
        return set()

    def close(self) -> None:
        self.closed = True


def test_a_signal_that_comes_inside_of_a_destructor_is_not_lost(tmp_path, monkeypatch):
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: dropped.append(event.exc_type))
    on = NeverEnds()
    with pytest.raises(Stopped, match="after 0 of 1 runs"):
        work_off([job("a", tmp_path)], on)
    assert dropped == [Stopped]
    assert (on.looks, on.closed) == (1, True)


def test_the_live_table_counts_and_tells_the_time_left(tmp_path, monkeypatch):
    jobs = {name: job(name, tmp_path) for name in ("a", "b", "c", "d")}
    console = Console(force_terminal=True, width=80, record=True, highlight=False, file=io.StringIO())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "metrics.jsonl").write_text("{}\n")
    assert share_done(jobs["b"]) == 0.5
    clock_shows = iter([1000.0])
    monkeypatch.setattr("induction_memory.sweep.board.time.monotonic", lambda: next(clock_shows, 1100.0))
    with Board(jobs, console=console) as board:
        board.note("a line that stays")
        board.show(["a"], ["d"], lambda: {"a", "b"})
    shown = console.export_text()
    assert "1 of 4 runs done, 1 running, 1 failed; 1:15 left" in shown  # 2 runs' worth in 100 s, 1.5 to go
    assert re.search(r"b +step 0 of 1", shown)
    assert "a line that stays" in shown
    assert clock(3700.0) == "1:01:40"


def test_nothing_is_shown_where_there_is_no_terminal(tmp_path, capfd):
    assert work_off([job("a", tmp_path)], Pool(1))["a"].state == "done"
    assert capfd.readouterr() == ("", "")
