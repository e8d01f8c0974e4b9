"""`reproduce` and the study of heads under signals: Ctrl-C, a killed worker, a killed parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweep.test_launch import children
from tests.sweep.test_loop import is_free, wait_for
from tests.sweep.tiny_sweep import lines

pytestmark = pytest.mark.hard  # `make test` does the same to a sweep, through which both of them train
SMALL = ["--set", "task.length=64", "model.n_ctx=64", "train.batch_size=16"]
STUDY = Path(__file__).parents[2] / "analyses" / "multihead.py"


def begun(folder: Path) -> list[Path]:
    """The runs that train."""
    return [path.parent for path in folder.rglob("metrics.jsonl") if lines(path.parent) > 1]


def is_over(process: int) -> bool:
    """Whether a process is gone, or only waits to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["-m", "induction_memory", "reproduce", "3", "--workers", "1"], id="reproduce"),
        pytest.param([str(STUDY), "--seeds", "2", "--workers", "1", *SMALL], id="study"),
    ],
)
def test_a_killed_worker_is_replaced_and_ctrl_c_ends_all_in_one_line(command, tmp_path, knocks):
    where = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    if command[0] == str(STUDY):
        where = ["--out", str(tmp_path / "runs"), "--docs", str(tmp_path / "out")]
    owner = subprocess.Popen(
        [sys.executable, *command, *where], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: len(begun(tmp_path)) == 1)
    (worker,) = children(owner.pid)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: [child for child in children(owner.pid) if child != worker and not is_over(child)])
    wait_for(lambda: any(not is_free(run) for run in begun(tmp_path)))
    os.killpg(owner.pid, signal.SIGINT)
    _, told = owner.communicate()
    knocks["signals"] += 2
    killed, stopped = told.splitlines()
    assert "its process was killed by SIGKILL" in killed
    assert killed.endswith("; it is run again")
    assert "stopped by SIGINT after 0 of " in stopped
    assert stopped.endswith(" runs; the same command continues")
    assert owner.returncode == 128 + signal.SIGINT
    assert all(is_free(run) for run in begun(tmp_path))


def test_the_workers_die_with_a_killed_parent_and_hold_no_folder(tmp_path, knocks):
    command = [sys.executable, "-m", "induction_memory", "reproduce", "3", "--runs", str(tmp_path), "--quiet"]
    owner = subprocess.Popen([*command, "--out", str(tmp_path / "out")], start_new_session=True)
    wait_for(lambda: len(begun(tmp_path)) == 2)
    workers = children(owner.pid)
    assert len(workers) == 2
    owner.kill()
    owner.wait()
    knocks["signals"] += 1
    wait_for(lambda: all(is_over(worker) for worker in workers))
    assert all(is_free(run) for run in begun(tmp_path))
