"""Damage in a series of checkpoints that others trained, and in what was measured of it."""

import hashlib
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from induction_memory import measure
from induction_memory.errors import Error, InputError
from induction_memory.probes import attention
from induction_memory.trajectory.series import revisions
from induction_memory.trajectory.verification import check
from tests.trajectory.series import CONTEXT, VOCAB, write_series

TOKENS = torch.arange(CONTEXT).remainder(VOCAB)[None]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> Path:
    return write_series("gpt2", tmp_path_factory.mktemp("series"), [0, 100])


@pytest.fixture
def hub(series, tmp_path) -> Path:
    """The series as a Hub cache: links to blobs, large files named by SHA-256 and the others as git does."""
    cache = tmp_path / "models--someone--tiny"
    for folder in ("blobs", "refs"):
        (cache / folder).mkdir(parents=True)
    for step in (0, 100):
        snapshot = cache / "snapshots" / f"commit{step}"
        snapshot.mkdir(parents=True)
        (cache / "refs" / f"step{step}").write_text(f"commit{step}")
        for path in (series / f"step{step}").iterdir():
            data = path.read_bytes()
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            blob = cache / "blobs" / (hashlib.sha256(data).hexdigest() if path.suffix == ".safetensors" else git)
            blob.write_bytes(data)
            (snapshot / path.name).symlink_to(blob)
    return cache


def damage(path: Path, chance: random.Random, cut: bool, span: int | None = None) -> bytes:
    """Flip a bit of a file or cut it; what was in it before."""
    whole = path.read_bytes()
    if cut:
        path.write_bytes(whole[: chance.randrange(len(whole))])
    else:
        damaged = bytearray(whole)
        damaged[chance.randrange(min(span or len(whole), len(whole)))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
    return whole


def count(knocks, cut: bool) -> None:
    knocks["truncations of a series" if cut else "byte flips of a series"] += 1


@pytest.mark.parametrize("times", [30, pytest.param(600, marks=pytest.mark.hard)])
def test_damage_in_a_hub_cache_is_refused_and_named(times, hub, knocks):
    chance = random.Random(times)
    assert check(revisions(hub)).empty
    files = sorted((hub / "snapshots" / "commit0").iterdir())
    for number in range(times):
        link, cut = files[number % len(files)], number % 4 == 0
        whole = damage(link.resolve(), chance, cut)
        with pytest.raises(Error, match="expected what was written, got content that differs from the hash") as error:
            revisions(hub).model(0)
        assert link.name in str(error.value)
        found = check(revisions(hub))
        assert any(link.name in where for where in found.loc[found["finding"] == "damaged", "where"])
        link.resolve().write_bytes(whole)
        count(knocks, cut)
    assert check(revisions(hub)).empty


@pytest.mark.parametrize("times", [16, pytest.param(300, marks=pytest.mark.hard)])
def test_damage_in_a_plain_folder_gives_the_right_model_an_error_or_a_finding(times, series, tmp_path, knocks):
    """Its files have no checksums: what is odd in a header, an index or a configuration is all that can be seen."""
    chance, copy = random.Random(times), shutil.copytree(series, tmp_path / "copy")
    right = revisions(copy).model(0)(TOKENS)
    files = sorted(path for path in (copy / "step0").iterdir() if path.name != "generation_config.json")
    refused = 0
    for number in range(times):
        path, cut = files[number % len(files)], number % 4 == 0
        header = 8 + int.from_bytes(path.read_bytes()[:8], "little") if path.suffix == ".safetensors" else None
        whole = damage(path, chance, cut, header)
        message = ""
        try:
            same = torch.equal(revisions(copy).model(0)(TOKENS), right)
        except Error as error:
            same, message = True, str(error)
        refused += bool(message)
        assert "copy" in message or not message
        assert "\n" not in message
        assert same or not check(revisions(copy)).empty, (path.name, number)
        path.write_bytes(whole)
        count(knocks, cut)
    assert refused > times / 4


@pytest.mark.parametrize("times", [20, pytest.param(300, marks=pytest.mark.hard)])
def test_damaged_results_are_measured_again(times, series, tmp_path, knocks, monkeypatch):
    chance, measured = random.Random(times), []

    run = attention.run_repeated
    monkeypatch.setattr(attention, "run_repeated", lambda *given: measured.append(1) or run(*given))
    kept = tmp_path / "kept"
    right = attention.head_scores(revisions(series, keep=kept), step="all")
    files = sorted(kept.glob("*.result"))
    assert len(files) == 2
    for number in range(times):
        whole = damage(files[number % 2], chance, number % 4 == 0)
        before = len(measured)
        pd.testing.assert_frame_equal(attention.head_scores(revisions(series, keep=kept), step="all"), right)
        assert len(measured) == before + 1
        assert files[number % 2].read_bytes() == whole
        count(knocks, number % 4 == 0)


@pytest.mark.parametrize("kind", ["gpt2", "neox"])
def test_a_file_that_is_cut_is_named_when_its_model_is_asked_for(kind, tmp_path):
    written = write_series(kind, tmp_path, [0, 100])
    file = min((written / "step100").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(InputError, match=r"step100.*expected a safetensors file"):
        measure(revisions(written), lambda at: {"n": at.model.cfg.n_layers})
