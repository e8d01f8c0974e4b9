"""The network is used by name only, and what it brings is read like any Hub cache."""

import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest

from induction_memory.errors import InputError
from induction_memory.trajectory.series import fetch_revisions
from tests.trajectory.series import write_series


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub with three revisions of a tiny model; it notes what is fetched."""
    series, cache, fetched = write_series("gpt2", tmp_path / "origin", [0, 100, 200]), tmp_path / "models--me--tiny", []

    def refs(name):
        branches = [SimpleNamespace(name=n) for n in ("main", "step0", "step100", "step200")]
        return SimpleNamespace(branches=branches, tags=[])

    def download(name, revision, cache_dir, allow_patterns):
        fetched.append(revision)
        (cache / "refs").mkdir(parents=True, exist_ok=True)
        (cache / "refs" / revision).write_text(f"commit-{revision}")
        return str(shutil.copytree(series / revision, cache / "snapshots" / f"commit-{revision}"))

    monkeypatch.setattr(huggingface_hub, "list_repo_refs", refs)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return fetched


def test_only_the_steps_asked_for_are_fetched(hub):
    series = fetch_revisions("me/tiny", [200, 0])
    assert hub == ["step0", "step200"]
    assert series.steps.tolist() == [0, 200]


@pytest.mark.parametrize(
    ("name", "steps", "message"),
    [
        ("tiny", [0], "source: expected owner/name"),
        ("me/tiny", [], "step: expected the steps"),
        ("me/tiny", [7], "steps that me/tiny has"),
    ],
)
def test_mistakes_fetch_nothing(hub, name, steps, message):
    with pytest.raises(InputError, match=message):
        fetch_revisions(name, steps)
    assert hub == []
