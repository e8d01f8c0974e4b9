"""The command `sweep`: mistakes, the dry run, failures and signals, each in plain lines."""

import signal
import subprocess
import sys

import pytest

from induction_memory import cli
from induction_memory.sweep import loop
from induction_memory.sweep.loop import Finished
from tests.sweep.test_loop import is_free, wait_for
from tests.sweep.tiny_sweep import write


@pytest.fixture
def run(capsys, monkeypatch):
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["induction-memory", "sweep", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["FILE"], "sweep: expected --out PATH"),
        (["FILE", "--out", "OUT", "--workers", "0"], "--workers: expected a whole number from 1 to 1024, got 0"),
        (["FILE", "--out", "OUT", "--workers", "2", "--scheduler", "x"], "--workers: expected it or --scheduler"),
        (["none.toml", "--out", "OUT"], "FILE: expected a sweep's file, got 'none.toml'"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(run, tmp_path, arguments, message):
    file, out = str(write(tmp_path)), str(tmp_path / "out")
    code, printed, told = run(*({"FILE": file, "OUT": out}.get(word, word) for word in arguments))
    assert (code, printed) == (2, "")
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_is_one_line_and_exit_2(run, tmp_path):
    file = str(write(tmp_path))
    code, printed, told = run(file, "--out", file)
    assert (code, printed) == (2, "")
    assert "out: expected a folder, got" in told
    assert told.count("\n") == 1


def test_a_dry_run_lists_every_run_and_writes_nothing(run, tmp_path):
    code, printed, told = run(str(write(tmp_path)), "--out", str(tmp_path / "out"), "--dry-run", "--workers", "3")
    assert (code, told) == (0, "")
    heading, *rows, end = printed.splitlines()
    assert heading.split() == ["run", "state", "steps", "time", "disk"]
    assert rows[0].split()[:3] == ["task.k-1_seed-0", "new", "60"]
    assert len(rows) == 4
    assert end.startswith("4 of 4 runs to train: about ")
    assert " on 3 workers, " in end
    assert not (tmp_path / "out").exists()


def test_failed_runs_are_told_together_with_their_error_and_exit_1(run, tmp_path, monkeypatch):
    ended = Finished(("a",), ("b", "c"), {"d": "it was wrong", "e": "it broke", "f": "it was wrong"})
    monkeypatch.setattr(loop, "start", lambda *arguments, **options: ended)
    code, printed, told = run(str(write(tmp_path)), "--out", "somewhere")
    assert code == 1
    assert printed == "2 runs trained, 1 done before, 3 failed, in somewhere\n"
    assert told.splitlines() == ["d and 1 more failed: it was wrong", "e failed: it broke"]


@pytest.mark.slow
def test_a_terminated_sweep_says_so_in_one_line_and_frees_its_folders(tmp_path):
    command = [sys.executable, "-m", "induction_memory", "sweep", str(write(tmp_path)), "--out", str(tmp_path / "out")]
    process = subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = tmp_path / "out" / "task.k-1_seed-0"
    wait_for(first.exists)
    process.send_signal(signal.SIGTERM)
    printed, told = process.communicate()
    assert (process.returncode, printed) == (128 + signal.SIGTERM, "")
    assert told.startswith("induction-memory: stopped by SIGTERM after ")
    assert told.endswith(" of 4 runs; the same command continues\n")
    assert told.count("\n") == 1
    assert is_free(first)
