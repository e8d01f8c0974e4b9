"""Folders that somebody has tampered with: whole files swapped, fields that cannot be, links, devices, absurd sizes.

Anyone can compute a seal, so a sealed manifest may still say anything. What is read is right, or an error of one line
names the file; nothing outside of the folder is read, and nothing that is not surely a run's own is removed.
"""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from induction_memory import load, thin, verify
from induction_memory.errors import DamagedError, Error, InputError
from induction_memory.model.config import ModelConfig
from induction_memory.training.run import resume, start
from induction_memory.trajectory.lock import may_begin, remove
from induction_memory.trajectory.manifest import PIECES, ROUNDED, digest
from induction_memory.trajectory.writer import Writer
from tests.tiny_runs import tiny
from tests.trajectory.test_corruption import everything, same

MODEL = ModelConfig(d_model=16, n_ctx=16, feed_forward="none")
FILES = [*PIECES, "manifest.json"]


def stop_at(step: int, monkeypatch) -> None:
    """From now on a run is interrupted when it comes to that step."""
    record = Writer.record

    def stop(self, number, *rest):
        if number == step:
            raise KeyboardInterrupt
        record(self, number, *rest)

    monkeypatch.setattr(Writer, "record", stop)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two finished runs that differ in their data alone, and the same two stopped on their way, and rounded."""
    root = tmp_path_factory.mktemp("runs")
    for name, seed in (("a", 1), ("b", 9)):
        config = tiny(
            MODEL, steps=4, data_seed=seed, checkpoints="every 1", grafts=(f"W_V2={root / 'donor'}@1 from 2",)
        )
        if not (root / "donor").exists():
            start(tiny(MODEL, steps=1), root / "donor", progress=False)
        start(config, root / name, progress=False)
        with pytest.MonkeyPatch.context() as patch:
            stop_at(3, patch)
            with pytest.raises(KeyboardInterrupt):
                start(config, root / f"{name} growing", progress=False)
        thin(load(root / name), root / f"{name} rounded", rounded=True)
    return root


def copy(folders: Path, name: str, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folders / name, to)
    return to


def reseal(folder: Path, **changes) -> None:
    """Change fields of a manifest and seal it again; a value of ... takes the field away."""
    path = folder / "manifest.json"
    values = json.loads(path.read_text()) | changes
    values = {name: value for name, value in values.items() if value is not ... and name != "seal"}
    path.write_text(json.dumps(values | {"seal": digest(values)}))


def test_a_file_of_another_run_is_noticed(folders, tmp_path, knocks):
    for name in [n for n in FILES if (folders / "a" / n).exists()]:
        folder = copy(folders, "a", tmp_path / "mixed")
        if (folders / "b" / name).read_bytes() == (folder / name).read_bytes():
            continue
        shutil.copy(folders / "b" / name, folder)
        knocks["swapped files"] += 1
        assert verify(folder), name
        with pytest.raises(DamagedError):
            everything(folder)
    assert knocks["swapped files"] >= 4


def test_a_step_of_another_run_or_another_step_is_noticed_and_computed_again(folders, tmp_path, knocks):
    right = everything(folders / "a")
    steps = [f"steps/{step:08d}.safetensors" for step in range(3)]
    swaps = [("b growing", name, name) for name in [*steps, "latest.safetensors", "metrics.jsonl"]]
    swaps += [("a growing", source, target) for source, target in itertools.permutations(steps, 2)]
    for source, name, target in swaps:
        folder = copy(folders, "a growing", tmp_path / "mixed")
        shutil.copy(folders / source / name, folder / target)
        knocks["swapped files"] += 1
        if "latest" not in target:
            assert any(Path(target).name in line for line in verify(folder)), (source, target)
            with pytest.raises(DamagedError, match=Path(target).name):
                everything(folder)
        resume(folder, progress=False)
        assert verify(folder) == []
        assert same(everything(folder), right), (source, target)


@pytest.mark.usefixtures("unchecked")
def test_a_manifest_whose_fields_cannot_be_is_one_line(folders, tmp_path, knocks):
    good = json.loads((folders / "a" / "manifest.json").read_text())
    piece = {"sha256": "0" * 64, "size": 8}
    model, task, train = (good["config"][name] for name in ("model", "task", "train"))
    wrong = [
        {"extra": 1},
        *({name: ...} for name in ("state", "config", "pieces")),
        *({name: value} for name in good for value in (5.5, [1]) if name not in ("seal", "format", "version")),
        {"pieces": {"../../etc/passwd": piece}},
        {"pieces": {"/etc/passwd": piece}},
        {"pieces": {"frozen.safetensors": {"sha256": "0" * 64, "size": 10**30}}},
        {"pieces": {"frozen.safetensors": {"size": 8}}},
        {"first_step": -1},
        {"first_step": 10**30},
        {"threads": 10**30},
        {"config": {"task": task, "model": model | {"depth": 3}, "train": train}},
        {"config": {"task": task, "model": model | {"trained": 5}, "train": train}},
        {"config": {"task": task, "model": model | {"d_model": 10**12}, "train": train}},
        {"config": {"task": task | {"corpus": "/etc/passwd"}, "model": model, "train": train}},
        {"config": {"task": task | {"k": "many"}, "model": model, "train": train}},
        {"config": {"task": task, "model": model, "train": train | {"freeze": 7}}},
        {"config": {"task": task, "model": model, "train": train | {"checkpoints": "log 1000000000"}}},
    ]
    for changes in wrong:
        folder = copy(folders, "a", tmp_path / "wrong")
        if changes == {"seconds": 5.5}:
            continue
        reseal(folder, **changes)
        knocks["manifests that cannot be"] += 1
        with pytest.raises(Error, match=r"(manifest\.json|frozen\.safetensors): expected") as error:
            everything(folder)
        assert "\n" not in str(error.value)
        assert verify(folder) != []
    folder = copy(folders, "a", tmp_path / "newer")
    reseal(folder, version=99)
    with pytest.raises(InputError, match="expected format version 4, got 99"):
        load(folder)


@pytest.mark.parametrize("name", [n for n in FILES if n != "grafts.safetensors"])
def test_links_devices_pipes_and_folders_in_place_of_a_file_are_refused_at_once(name, folders, tmp_path, knocks):
    def link(path):
        path.symlink_to(folders / other / name)

    one, other = ("a rounded", "b rounded") if name == ROUNDED else ("a", "b")
    for make in (link, lambda p: p.symlink_to("/dev/zero"), os.mkfifo, Path.mkdir, lambda p: p.symlink_to(p)):
        if make is link and (folders / one / name).read_bytes() == (folders / other / name).read_bytes():
            continue
        folder = copy(folders, one, tmp_path / "run")
        (folder / name).unlink()
        make(folder / name)
        knocks["links, devices and pipes"] += 1
        with pytest.raises(Error) as error:
            everything(folder)
        assert name in str(error.value) or name == "manifest.json"
        if name != "manifest.json":
            assert any(name in line for line in verify(folder))


def test_absurd_sizes_in_a_header_are_refused(folders, tmp_path, knocks):
    whole = (folders / "a" / "trained.safetensors").read_bytes()
    folder = copy(folders, "a", tmp_path / "run")
    for length in (2**63, 2**40, len(whole), 0):
        (folder / "trained.safetensors").write_bytes(length.to_bytes(8, "little") + whole[8:])
        knocks["absurd sizes"] += 1
        with pytest.raises(DamagedError, match=r"trained\.safetensors"):
            everything(folder)


def test_only_what_is_surely_a_run_s_own_is_written_over_or_removed(tmp_path):
    theirs = {
        "steps": lambda p: (p.mkdir(), (p / "00000001.safetensors").write_text("mine")),
        "latest.safetensors": lambda p: p.write_text("mine"),
        "frozen.safetensors": lambda p: p.write_text("mine"),
        "manifest.json": lambda p: p.write_text("{}"),
        "metrics.jsonl": lambda p: p.write_text('{"mine": 1}\n'),
        ".notes.part": lambda p: p.write_text("mine"),
    }
    for name, make in theirs.items():
        folder = tmp_path / f"their {name}"
        folder.mkdir()
        make(folder / name)
        before = sorted((str(p), p.read_bytes()) for p in folder.rglob("*") if p.is_file())
        assert not may_begin(folder)
        with pytest.raises(Error):
            start(tiny(MODEL), folder, progress=False)
        with pytest.raises(Error):
            remove(folder)
        assert sorted((str(p), p.read_bytes()) for p in folder.rglob("*") if p.is_file()) == before

    run = start(tiny(MODEL, steps=2), tmp_path / "run", progress=False)
    (run.path / "steps").mkdir()
    (run.path / "steps" / "notes.txt").write_text("mine")
    start(tiny(MODEL, steps=2), run.path, resume=True, progress=False)
    assert (run.path / "steps" / "notes.txt").read_text() == "mine"
    with pytest.raises(InputError, match=r"nothing else, got 'notes\.txt'"):
        remove(run.path)
    shutil.rmtree(run.path / "steps")
    remove(run.path)
    assert not run.path.exists()


def test_a_name_with_escape_sequences_reaches_no_terminal(tmp_path):
    folder = tmp_path / "\x1b[31mred\nline"
    run = start(tiny(MODEL, steps=1), folder, progress=False)
    (run.path / "frozen.safetensors").write_bytes(b"")
    for line in verify(folder):
        assert line.isprintable()
    with pytest.raises(InputError) as error:
        start(tiny(MODEL, steps=1), folder, progress=False)
    assert str(error.value).isprintable()
    with pytest.raises(InputError) as error:
        load("x" * 300)
    assert len(str(error.value)) < 1000


def test_damage_survives_the_way_back_from_a_worker():
    import pickle  # what process pools use

    error = pickle.loads(pickle.dumps(DamagedError(Path("x"), "nothing")))
    assert str(error) == "x: expected what was written, got nothing"


def test_the_values_of_a_growing_run_are_those_of_the_finished_one(folders):
    growing, finished = load(folders / "a growing"), load(folders / "a")
    for step in growing.steps:
        left, right = growing.state(int(step)), finished.state(int(step))
        assert all(torch.equal(left[name], right[name]) for name in right)
