"""Damage anywhere in the format: right values or a clear error that names the file, never wrong values."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from induction_memory import load, thin, verify
from induction_memory.errors import Error
from induction_memory.model.config import ModelConfig
from induction_memory.training.run import start
from induction_memory.trajectory.writer import ResumePoint, Writer, resume_point
from tests.tiny_runs import tiny

FLIPS = [24, pytest.param(400, marks=pytest.mark.hard)]
FINISHED = ["manifest.json", "metrics.jsonl", "frozen.safetensors", "grafts.safetensors"]
FINISHED += ["trained.safetensors", "optimizer.safetensors"]
GROWING = ["metrics.jsonl", "grafts.safetensors", "latest.safetensors", "steps/00000001.safetensors"]
EXPORTED = ["config.json", "model.safetensors"]
PASSED_OVER = {("finished", "grafts.safetensors"), ("growing", "latest.safetensors")}
"""Damage here may do no harm: the one is needed no more, and for the other a stored step stands in."""
PLACES = [("finished", n) for n in FINISHED] + [("growing", n) for n in GROWING] + [("exported", n) for n in EXPORTED]
PLACES += [("rounded", n) for n in ("manifest.json", "rounded.safetensors")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A finished run, one that stopped on its way, an exported step, and a run with rounded steps."""
    root = tmp_path_factory.mktemp("runs")
    model = ModelConfig(d_model=16, n_ctx=16, feed_forward="none")
    donor = start(tiny(model, steps=1), root / "donor", progress=False)
    config = tiny(model, steps=3, resume_every=2, checkpoints="every 1", grafts=(f"W_V2={donor.path}@1 from 2",))
    finished = start(config, root / "finished", progress=False)
    finished.export(2, root / "exported")
    thin(finished, root / "rounded", rounded=True)
    with pytest.MonkeyPatch.context() as patch:
        record = Writer.record

        def stop(self, step, *rest):
            if step == 3:
                raise KeyboardInterrupt
            record(self, step, *rest)

        patch.setattr(Writer, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            start(config, root / "growing", progress=False)
    return root


def everything(folder: Path) -> dict[str, Any]:
    """All that can be read of a trajectory."""
    run = load(folder)
    names = [*run.frozen, *run.moving]
    return {
        "config": run.config,
        "steps": run.steps.tolist(),
        "rows": run.rows(),
        "stacks": {name: run.stack(name) for name in names},
        "optimizer": {int(step): run.stored_optimizer(int(step)) for step in run.steps},
        "grafts": list(resume(folder).grafts.values()) if not run.finished else [],
    }


def state(values: dict[str, Any], step: int) -> dict[str, torch.Tensor]:
    return {name: stack[values["steps"].index(step)] for name, stack in values["stacks"].items()}


def resume(folder: Path) -> ResumePoint:
    run = load(folder)
    return resume_point(folder, run.manifest, run.config)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def judge(folder: Path, name: str, right: dict[str, Any]) -> str:
    """ "right" or "refused"; anything else fails."""
    growing, values, message = folder.name == "growing", {}, ""
    try:
        if growing:
            check_resuming(folder, right)
        values = everything(folder)
    except Error as error:
        message = str(error)
    if message:
        assert Path(name).name in message
        assert "\n" not in message
        return "refused"
    if growing and name == "metrics.jsonl":  # a last line without its end counts as not written yet
        values["rows"] += right["rows"][len(values["rows"]) :]
    assert same(values, right), f"wrong values out of a damaged {name}"
    return "right"


def check_resuming(folder: Path, right: dict[str, Any]) -> None:
    """A run resumes from the right state of some step, and with the right metrics before it."""
    point = resume(folder)
    assert point.rows == right["rows"][: point.step]
    assert same(point.parameters, state(right, point.step))
    assert same(point.optimizer, right["optimizer"][point.step])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("flips", FLIPS)
@pytest.mark.parametrize(("kind", "name"), PLACES)
def test_a_flipped_bit_gives_right_values_or_an_error_that_names_the_file(kind, name, flips, folders, tmp_path, knocks):
    folder = tmp_path / kind
    shutil.copytree(folders / kind, folder)
    right = everything(folder)
    path = folder / name
    whole = path.read_bytes()
    chance = random.Random(f"{kind} {name} {flips}")
    refused = 0
    for flip in range(flips):
        damaged = bytearray(whole)
        span = min(len(whole), 1500) if flip % 2 else len(whole)  # every other one in the header
        damaged[chance.randrange(span)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        refused += judge(folder, name, right) == "refused"
        knocks["byte flips"] += 1
        if flip % 8 == 0 and kind != "exported" and name != "manifest.json":
            assert any(name in line for line in verify(folder)) or (kind, name) == ("growing", "metrics.jsonl")
    path.write_bytes(whole)
    assert same(everything(folder), right)
    assert refused > flips / 2 or (kind, name) in PASSED_OVER


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("kind", "name"), PLACES)
def test_a_truncated_or_missing_file_is_noticed(kind, name, folders, tmp_path, knocks):
    folder = tmp_path / kind
    shutil.copytree(folders / kind, folder)
    right = everything(folder)
    path = folder / name
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 2):
        path.write_bytes(whole[:length])
        verdict = judge(folder, name, right)
        knocks["truncations"] += 1
        if (kind, name) not in PASSED_OVER and (kind, name) != ("growing", "metrics.jsonl"):
            assert verdict == "refused"
            assert kind == "exported" or any(name in line for line in verify(folder))
    path.unlink()
    if (kind, name) not in PASSED_OVER and (kind, name) != ("growing", "metrics.jsonl"):
        if name.startswith("steps/"):
            assert any(name in line for line in verify(folder))
            return
        with pytest.raises(Error):
            everything(folder)


def test_the_files_of_two_runs_cannot_be_mixed_unnoticed(folders, tmp_path):
    model = ModelConfig(d_model=16, n_ctx=16, feed_forward="none")
    other = start(tiny(model, steps=3, data_seed=9), tmp_path / "other", progress=False)
    folder = tmp_path / "mixed"
    shutil.copytree(folders / "finished", folder)
    shutil.copy(other.path / "optimizer.safetensors", folder)
    assert {line.split(":")[0] for line in verify(folder)} == {str(folder / "optimizer.safetensors")}
