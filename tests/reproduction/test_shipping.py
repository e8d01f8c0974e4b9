"""What ships: steps, records and the index, from small runs."""

import json
import shutil

import numpy as np
import pytest
import torch

from analyses.tools import shipping
from induction_memory import load, thin, verify
from induction_memory.experiment.presets import PRESETS
from induction_memory.paper import plan
from induction_memory.paper import records as store
from induction_memory.training.run import start
from induction_memory.trajectory.search import SHIPPED

pytestmark = pytest.mark.slow


def test_telling_steps_follow_the_curves():
    steps = np.arange(0, 101)
    curve = np.clip((steps - 40) / 10, 0, 1)[:, None]  # everything happens between 40 and 50
    kept = shipping.telling_steps(steps, curve, 16)
    assert kept[0] == 0
    assert kept[-1] == 100
    assert len(kept) <= 16
    assert np.sum((kept >= 40) & (kept <= 50)) >= 8
    assert shipping.telling_steps(steps, curve, 1).tolist() == [100]


def test_shipping_writes_trajectories_records_and_an_index(trained, small, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "paper").symlink_to(trained)
    monkeypatch.setattr(shipping, "jobs", lambda *_: plan.jobs([4], "quick"))
    monkeypatch.setitem(shipping.STEPS, "fixed-triggers", 3)
    monkeypatch.setattr(shipping, "SMALL", ("fixed-triggers",))
    out, elsewhere = tmp_path / "checkpoints", "figure-3-seed-0"  # a record of a run that is not in `runs`
    shutil.copytree(SHIPPED / "records" / elsewhere, out / "records" / elsewhere)
    assert shipping.ship(runs, out) == ["random-triggers", "fixed-triggers"]
    assert shipping.ship(runs, out) == []
    assert verify(out / "random-triggers") == []
    records = store.read_all(out / "records")
    assert set(records) == {elsewhere, *(f"{name}-seed-0" for name in plan.FIGURES[4])}
    assert store.broken_records(out / "records") == set()
    assert "`random-triggers`" in (out / "README.md").read_text()
    fixed = load(out / "fixed-triggers")
    assert fixed.rounded.tolist() == fixed.steps.tolist()[:-1]
    assert f"| {len(fixed.steps)}, 0 to 4 ({len(fixed.rounded)} rounded) | kept |" in (out / "README.md").read_text()
    assert not [name for name in fixed.metrics if "_norm_" in name]
    longer = fixed.config.with_settings(["train.steps=6"])
    shutil.copytree(fixed.path, tmp_path / "longer")
    ours = start(longer, tmp_path / "longer", resume=True, progress=False).state(6)
    theirs = start(longer, tmp_path / "from the start", progress=False).state(6)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    thin(load(trained / "figure-4-bigram-seed-0"), tmp_path / "other")
    shutil.rmtree(out / "random-triggers")
    (tmp_path / "other").rename(out / "random-triggers")  # what was made from another run is made again
    assert shipping.ship(runs, out) == ["random-triggers"]


def test_what_ships_is_small_and_sound():
    files = [path for path in SHIPPED.rglob("*") if path.is_file() and ".cache" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 90e6
    for folder in sorted(path.parent for path in SHIPPED.glob("*/manifest.json")):
        assert verify(folder) == []
        command = json.loads((folder / "manifest.json").read_text())["command"].split()
        assert command[0] == "induction-memory"
        assert command[2] in {"train": PRESETS, "branch": shipping.TRAJECTORIES}[command[1]]
        assert not [word for word in command if word.startswith("/")]
        assert f"`{folder.name}`" in (SHIPPED / "README.md").read_text()
