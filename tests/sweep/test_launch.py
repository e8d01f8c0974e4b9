"""Real runs in a pool: killed, interrupted and started again, they end with the bits of serial runs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from induction_memory import load
from induction_memory.errors import InputError
from induction_memory.sweep import results
from induction_memory.sweep.loop import look, start
from induction_memory.sweep.plan import estimate, read
from tests.sweep.test_loop import is_free, wait_for
from tests.sweep.tiny_sweep import FILE, contents, finished, is_in_the_middle, write

pytestmark = pytest.mark.slow


def children(process: int) -> list[int]:
    """The processes that any of its threads started."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for path in lists for number in path.read_text().split()]


def test_killed_and_interrupted_a_sweep_ends_with_the_bits_of_serial_runs(serial, tmp_path):
    file, out = write(tmp_path), tmp_path / "out"
    first, second, third, _ = (run.name for run in read(file).runs)
    command = [sys.executable, "-m", "tests.sweep.stubs", str(file), str(out)]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(lambda: is_in_the_middle(out / first))
    (child,) = children(parent.pid)
    os.kill(child, signal.SIGKILL)  # its run goes to the end of the queue
    wait_for(lambda: is_in_the_middle(out / third))
    os.killpg(parent.pid, signal.SIGINT)  # as Ctrl-C does
    _, told = parent.communicate()
    assert parent.returncode != 0
    assert told.count("its process was killed by SIGKILL") == told.count(f"{first}: its process was killed") == 1
    assert is_free(out / third)
    before = finished(out)
    assert set(before) == {second}
    ended = start(file, out, workers=1)
    assert ended.skipped == (second,)
    assert {second, *ended.done} == set(serial)
    assert contents(read(file).runs, out) == serial
    assert finished(out)[second] == before[second]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """One run that is done, one that diverges, and one whose folder is not a run."""
    folder = tmp_path_factory.mktemp("three")
    text = FILE.replace("seeds = [0, 1]", "").replace("steps = 60", "steps = 40")
    text = text[: text.index("[grid]")] + "[grid]\ntrain.learning_rate = [0.5, 1e25, 0.25]"
    file = write(folder, text)
    runs = [run.name for run in read(file).runs]
    (folder / "out" / runs[2]).mkdir(parents=True)
    (folder / "out" / runs[2] / "mine.txt").write_text("not a run")
    return file, folder / "out", runs, start(file, folder / "out", workers=1)


def test_a_run_that_fails_is_told_with_its_error_and_stops_no_other(three):
    _, out, (good, diverged, foreign), ended = three
    assert ended.done == (good,)
    assert set(ended.failed) == {diverged, foreign}
    assert "the loss is nan at step " in ended.failed[diverged]
    assert "train.learning_rate may be too large" in ended.failed[diverged]
    assert ended.failed[foreign].startswith("out: expected a new or an empty folder")
    assert json.loads((out / "failures.json").read_text()) == dict(ended.failed)
    assert (out / foreign / "mine.txt").read_text() == "not a run"


def test_the_table_has_a_row_per_run_with_settings_and_results(three):
    _, out, (good, diverged, foreign), ended = three
    table = results.table(out)
    assert table["run"].tolist() == [good, diverged, foreign]
    assert table["state"].tolist() == ["finished", "failed", "failed"]
    assert table["error"].tolist() == ["", ended.failed[diverged], ended.failed[foreign]]
    assert table["train.learning_rate"].tolist() == [0.5, 1e25, 0.25]
    assert not [name for name in table if name.startswith(("task.", "model."))]
    metrics = load(out / good).metrics
    row = table.iloc[0]
    assert row["steps"] == 40
    assert row["loss"] == metrics["loss"].iloc[-1]
    assert row["accuracy_in_context"] == metrics["accuracy_in_context"].dropna().iloc[-1]


def test_the_three_seeds_of_a_seed_are_one_column(tmp_path):
    table = results.table(_planned(tmp_path))
    assert table["seed"].tolist() == [0, 1, 0, 1]
    assert table["task.k"].tolist() == [1, 1, 3, 3]
    assert table["state"].unique().tolist() == ["missing"]
    assert not [name for name in table if "_seed" in name]


def _planned(folder):
    write(folder).rename(folder / "sweep.toml")
    return folder


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder: expected the folder of a sweep"):
        results.table(tmp_path)
    with pytest.raises(InputError, match="folder: expected the folder of a sweep"):
        results.table(tmp_path / "none")


def test_a_folder_with_another_configuration_is_refused_before_anything_is_trained(three, tmp_path):
    file, out, (good, *_), _ = three
    changed = write(tmp_path, file.read_text().replace("batch_size = 16", "batch_size = 8"))
    with pytest.raises(InputError, match=rf"{good}: expected train.batch_size = 8, as in the sweep's file, got 16"):
        start(changed, out)
    longer = read(write(tmp_path, file.read_text().replace("steps = 40", "steps = 50")))
    assert look(longer.runs, out)[good] == "begun"
    assert look(read(file).runs, out)[good] == "done"


@pytest.mark.parametrize("workers", [0, 2.0, True, 100_000])
def test_a_wrong_number_of_workers_is_refused(tmp_path, workers, unchecked):
    with pytest.raises(InputError, match="--workers: expected a whole number from 1 to 1024"):
        start(write(tmp_path), tmp_path / "out", workers=workers)
    assert not (tmp_path / "out").exists()


def test_the_estimate_of_disk_is_what_the_run_takes_and_done_runs_take_no_time(three):
    file, out, (good, diverged, foreign), _ = three
    runs = read(file).runs
    found = {one.name: one for one in estimate(runs, look(runs, out), {diverged: 0.5})}
    taken = sum(path.stat().st_size for path in (out / good).rglob("*") if path.is_file())
    assert abs(found[good].disk / taken - 1) < 0.1
    assert found[good].seconds == 0
    assert found[foreign].seconds > 0
    assert found[foreign].seconds / 2 <= found[diverged].seconds < found[foreign].seconds  # starting is not halved
