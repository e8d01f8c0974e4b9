"""Rounded steps: within half a unit, stated everywhere, and no part of what a run goes on from."""

import shutil
import zlib

import numpy as np
import pytest
import torch

import induction_memory as im
from induction_memory import load, thin, verify
from induction_memory.cli.verify import verify as verify_command
from induction_memory.errors import DamagedError, InputError
from induction_memory.training.branching import branch
from induction_memory.training.run import start
from induction_memory.trajectory.manifest import Manifest
from induction_memory.trajectory.tensors import unit_of, write_rounded
from induction_memory.trajectory.writer import Writer
from tests.tiny_runs import tiny

CHOSEN = [0, 2, 4, 8, 12]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("runs") / "whole", progress=False)


@pytest.fixture(scope="module")
def coarse(run, tmp_path_factory):
    return thin(run, tmp_path_factory.mktemp("runs") / "coarse", CHOSEN, keep_optimizer="last", rounded=True)


def by_hand(values):
    """A parameter over its rounded steps, rounded with Python's own numbers."""
    size = sum(float(x) ** 2 for x in values.flatten()) / values.numel()
    unit = 1.0
    while unit > size**0.5 / 2**10:
        unit /= 2
    while unit <= size**0.5 / 2**11:
        unit *= 2
    return torch.tensor([round(float(x) / unit) * unit for x in values.flatten()]).reshape(values.shape), unit


def test_each_weight_is_rounded_to_its_parameters_unit_and_the_last_step_is_exact(run, coarse):
    assert coarse.steps.tolist() == CHOSEN
    assert coarse.rounded.tolist() == CHOSEN[:-1]
    assert coarse.config == run.config
    name = "blocks.1.attn.W_O"
    expected, unit = by_hand(run.stack(name, CHOSEN[:-1]))
    assert unit == coarse.rounding.units[name]
    assert torch.equal(coarse.stack(name, CHOSEN[:-1]), expected)
    assert torch.equal(coarse.stack(name)[-1], run.stack(name, [12])[0])
    for name in run.moving:
        off = (coarse.stack(name) - run.stack(name, CHOSEN)).abs()
        assert off.max() <= coarse.rounding.units[name] / 2
    assert all(torch.equal(value, run.state(12)[name]) for name, value in coarse.state(12).items())
    assert list(coarse) == CHOSEN
    assert coarse.state(4)["blocks.0.attn.W_K"].dtype == torch.float32


def test_rounding_is_stated(coarse, capsys):
    assert repr(coarse) == "Trajectory('coarse': 5 steps from 0 to 12, 4 of them rounded)"
    assert "rounded.safetensors" in Manifest.read(coarse.path).pieces
    verify_command(str(coarse.path))
    assert capsys.readouterr().out.endswith("every checksum holds; 4 of 5 steps are rounded\n")


def test_initial_weights_are_the_exact_ones(run, coarse):
    found, expected = coarse.initial(), run.state(0)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_rounded_copy_is_lengthened_to_the_bits_of_the_uninterrupted_run(tmp_path):
    short, long = (tiny(steps=steps, checkpoints="every 2") for steps in (8, 14))
    expected = start(long, tmp_path / "long", progress=False)
    before = thin(
        start(short, tmp_path / "short", progress=False),
        tmp_path / "copy",
        [0, 4, 8],
        keep_optimizer="last",
        keep_norms=False,
        rounded=True,
    ).state(4)
    found = start(long, tmp_path / "copy", resume=True, progress=False)
    assert found.steps.tolist() == [0, 4, 8, 10, 12, 14]
    assert found.rounded.tolist() == [0, 4]
    for step in (8, 10, 12, 14):
        assert all(torch.equal(found.state(step)[name], value) for name, value in expected.state(step).items())
    optimizers = (run.optimizer_state(14) for run in (found, expected))
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in optimizers), strict=True))
    assert all(torch.equal(found.state(4)[name], value) for name, value in before.items())
    same = [n for n in expected.metrics if not n.startswith(("checkpoint", "crc32")) and "_norm_" not in n]
    assert found.metrics[same].equals(expected.metrics[same])
    assert verify(tmp_path / "copy") == []


def test_a_lengthened_copy_that_is_stopped_is_read_and_resumed(coarse, tmp_path, monkeypatch):
    def stop(self, step, *rest):
        if step == 15:
            raise KeyboardInterrupt
        record(self, step, *rest)

    folder, record, longer = tmp_path / "copy", Writer.record, tiny(steps=17)
    shutil.copytree(coarse.path, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            start(longer, folder, resume=True, progress=False)
    half = load(folder)
    assert half.rounded.tolist() == CHOSEN[:-1]
    assert set(CHOSEN) <= set(half.steps.tolist())
    assert torch.equal(half.state(4)["blocks.0.attn.W_K"], coarse.state(4)["blocks.0.attn.W_K"])
    assert half.stored_optimizer(4) is None
    assert verify(folder) == []
    whole, found = start(longer, tmp_path / "whole", progress=False), start(longer, folder, resume=True, progress=False)
    assert all(torch.equal(found.state(17)[name], value) for name, value in whole.state(17).items())


def test_thinned_again_or_exported_rounded_steps_stay_as_they_are(coarse, tmp_path):
    again = thin(coarse, tmp_path / "again", [2, 8, 12], rounded=True)
    late = thin(coarse, tmp_path / "late", [2, 8])
    for other, rounded in ((again, [2, 8]), (late, [2, 8])):
        assert other.rounded.tolist() == rounded
        for step in other.steps.tolist():
            assert all(torch.equal(other.state(step)[n], value) for n, value in coarse.state(step).items())
        assert verify(other.path) == []
    assert load(coarse.export(8, tmp_path / "eight")).rounded.tolist() == [8]
    assert load(coarse.export(12, tmp_path / "twelve")).rounded.tolist() == []


def test_a_branch_says_that_it_left_a_rounded_step(coarse, tmp_path):
    off = branch(coarse, 8, tmp_path / "rounded", progress=False).parent
    assert off is not None
    assert off["weights"] == "rounded"
    exact = branch(coarse, 12, tmp_path / "exact", steps=13, progress=False).parent
    assert exact is not None
    assert "weights" not in exact


def test_a_flipped_bit_is_found(coarse, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(coarse.path, folder)
    path = folder / "rounded.safetensors"
    flipped = bytearray(path.read_bytes())
    flipped[-100] ^= 4
    path.write_bytes(flipped)
    assert any("rounded.safetensors" in line for line in verify(folder))
    with pytest.raises(DamagedError, match=r"rounded\.safetensors: expected what was written, got flipped bits"):
        im.probes.recall(load(folder))


@pytest.mark.parametrize("stored", [zlib.compress(bytes(10**7)), zlib.compress(bytes(16)) + b"more", b"no stream"])
def test_differences_of_another_size_are_refused(coarse, tmp_path, monkeypatch, stored):
    monkeypatch.setattr(
        "induction_memory.trajectory.tensors._deflated", lambda whole: np.frombuffer(stored, np.uint8).copy()
    )
    odd = thin(coarse, tmp_path / "odd", [2, 12])
    with pytest.raises(DamagedError, match="differences that cannot be read of"):
        odd.state(2)


def test_weights_that_are_no_numbers_are_not_rounded(tmp_path):
    bad = torch.tensor([1.0, float("nan")])
    with pytest.raises(InputError, match=r"^rounded: expected finite float32 weights, got others in W$"):
        write_rounded(tmp_path / "rounded.safetensors", [0], ["W"], lambda name, step: bad, {})
    assert unit_of(np.zeros((2, 3), np.float32)) == 1
