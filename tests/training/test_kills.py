"""Processes that are killed at random moments: what they wrote is gone on with, to the same bits."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from induction_memory import load, probes, verify
from induction_memory.errors import InputError
from induction_memory.training.run import start
from induction_memory.trajectory.lock import CACHE, locked
from induction_memory.trajectory.writer import Writer
from tests.training.test_resume import content
from tests.training_process import PROBES, Worker, config_of

pytestmark = pytest.mark.slow
STEPS = 60


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was never stopped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        return start(config_of(STEPS), tmp_path_factory.mktemp("runs") / "whole", progress=False).path


@pytest.fixture(scope="module")
def growing(tmp_path_factory) -> Path:
    """The same run, stopped before its last step: what is left to do is compaction."""
    folder = tmp_path_factory.mktemp("runs") / "growing"
    with pytest.MonkeyPatch.context() as patch:
        record = Writer.record

        def stop(self, step, *rest):
            if step == STEPS:
                raise KeyboardInterrupt
            record(self, step, *rest)

        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(Writer, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            start(config_of(STEPS), folder, progress=False)
    return folder


def without_cache(folder: Path) -> dict[str, bytes]:
    """The files of a run. A job killed after its last write may leave the file of a lock that nobody holds."""
    return {name: data for name, data in content(folder).items() if not name.startswith((str(CACHE), ".lock"))}


@pytest.mark.parametrize("wanted", [4, pytest.param(50, marks=pytest.mark.hard)])
@pytest.mark.parametrize("what", ["training", "compaction", "branching", "thinning", "probe caching"])
def test_killed_at_random_moments_a_job_ends_with_the_same_bits(what, wanted, worker, whole, growing, tmp_path, knocks):
    job, argument, begins_with = {
        "training": ("train", STEPS, None),
        "compaction": ("train", STEPS, growing),
        "branching": ("branch", whole, None),
        "thinning": ("thin", whole, None),
        "probe caching": ("probe", "", whole),
    }[what]

    def folder_of(name: str) -> Path:
        return shutil.copytree(begins_with, tmp_path / name) if begins_with else tmp_path / name

    never_stopped = folder_of("never stopped")
    worker.start(job, never_stopped, argument)
    begun = time.perf_counter()
    assert worker.status() == 0
    lifetime = time.perf_counter() - begun
    expected = without_cache(never_stopped)
    right = probes.table(load(never_stopped), PROBES) if job == "probe" else None
    moments, kills, folders, folder = random.Random(what), 0, 0, folder_of("0")
    while kills < wanted or not folders:
        process = worker.start(job, folder, argument)
        if kills < wanted:
            time.sleep(moments.uniform(0, 0.9 * lifetime))
            os.kill(process, signal.SIGKILL)
        status = worker.status()
        assert status in (0, -signal.SIGKILL)
        kills += status == -signal.SIGKILL
        if right is not None:  # what was kept before the kill is right, the rest is measured again
            pd.testing.assert_frame_equal(probes.table(load(folder), PROBES), right)
        if status == 0:
            assert without_cache(folder) == expected
            assert verify(folder) == []
            folders += 1
            folder = folder_of(str(folders))
        elif right is not None:
            shutil.rmtree(folder / CACHE, ignore_errors=True)
    knocks[f"SIGKILLs of {what}"] += kills


def test_a_second_trainer_refuses_and_names_the_first_and_a_killed_one_blocks_nobody(worker, tmp_path):
    folder = tmp_path / "busy"
    process = worker.start("train", folder, 100_000)
    while not (folder / "steps" / "00000002.safetensors").exists():
        time.sleep(0.01)
    before = sorted(folder.rglob("*.json"))
    with pytest.raises(
        InputError, match=rf"busy: expected a folder no other process trains in, got process {process} on "
    ):
        start(config_of(100_000), folder, resume=True, progress=False)
    assert sorted(folder.rglob("*.json")) == before
    os.kill(process, signal.SIGKILL)
    assert worker.status() == -signal.SIGKILL
    assert (folder / ".lock").exists()
    with locked(folder), pytest.raises(InputError, match=f"got process {os.getpid()} on "), locked(folder):
        pass
    assert not (folder / ".lock").exists()
