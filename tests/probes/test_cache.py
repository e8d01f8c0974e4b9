"""Results kept beside a trajectory: right values or none, whatever happens to the files."""

import os
import random
import shutil
import stat
import time

import pandas as pd
import pytest

from induction_memory import probes
from induction_memory.probes import measuring
from induction_memory.trajectory import kept_results, load
from tests.test_imports import FILES, ROOMS, imported, room
from tests.tiny_runs import tiny

NAMES = ["W_K1", "W_O2", "norm_W_O2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from induction_memory.training.run import start

    return start(tiny(), tmp_path_factory.mktemp("runs") / "run", quiet=True).path


@pytest.fixture
def run(folder, tmp_path):
    """A run of its own, with results kept."""
    shutil.copytree(folder, tmp_path / "run")
    run = load(tmp_path / "run")
    probes.table(run, NAMES)
    return run


def entries(run) -> list:
    return sorted(path for path in (run.path / measuring.CACHE).iterdir())


@pytest.mark.parametrize("flips", [60, pytest.param(600, marks=pytest.mark.hard)])
def test_a_flipped_or_cut_entry_is_never_read(run, flips, knocks):
    right = probes.table(run, NAMES)
    chance = random.Random(0)
    for flip in range(flips):
        path = chance.choice(entries(run))
        whole = path.read_bytes()
        if flip % 5:
            damaged = bytearray(whole)
            damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
            knocks["byte flips"] += 1
        else:
            damaged = whole[: chance.randrange(len(whole))]
            knocks["truncations"] += 1
        path.write_bytes(damaged)
        pd.testing.assert_frame_equal(probes.table(run, NAMES), right)
        assert path.read_bytes() == whole  # measured again, and kept


def test_an_entry_under_another_s_name_is_never_read(run, knocks):
    right = probes.table(run, NAMES)
    first, second, *_ = entries(run)
    shutil.copy(first, second)
    knocks["swapped files"] += 1
    pd.testing.assert_frame_equal(probes.table(run, NAMES), right)


def test_a_group_can_read_the_entries_and_no_parts_stay(run, monkeypatch, knocks):
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries(run)} == {0o644}
    right = probes.table(run, NAMES)

    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    for path in entries(run):
        path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(kept_results.os, "replace", kill)
        with pytest.raises(Killed):
            probes.table(run, NAMES)
    knocks["kills of probe caching"] += 1
    left = [path for path in entries(run) if path.name.endswith(".part")]
    assert len(left) == 1
    old = run.path / measuring.CACHE / "tmpold.part"
    old.write_bytes(b"")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    pd.testing.assert_frame_equal(probes.table(run, NAMES), right)
    assert not [path for path in entries(run) if path.name.endswith(".part")]


def test_a_kept_value_is_keyed_by_the_code_of_every_room_that_probes_import():
    reached, left = set(), ["probes"]
    while left:
        reached.add(now := left.pop())
        names = set().union(*(imported(path) for path in FILES if room(path) == now))
        found = {name.split(".")[1] for name in names if name.startswith("induction_memory.")}
        left += (found & set(ROOMS)) - reached
    assert reached - {"training"} == set(measuring.CODE)  # training makes runs, and reads no value from them


def test_an_interruption_keeps_the_steps_that_are_done_and_caches_no_part(run, monkeypatch, capsys):
    whole = probes.table(run, ["loss", "W_K1"], cached=False)
    seen, prepare = [], measuring._without_norms

    def stops(source, step):
        seen.append(step)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return prepare(source, step)

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "_without_norms", stops)
        part = probes.table(run, ["loss", "W_K1"])
    assert "interrupted: 2 steps are kept" in capsys.readouterr().err
    rows = whole[(whole["probe"] == "W_K1") | whole["step"].isin(seen[:2])].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, rows)
    pd.testing.assert_frame_equal(probes.table(run, ["loss", "W_K1"]), whole)
