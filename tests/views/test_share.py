"""A shared folder is a trajectory with a card; it leaves the machine only when asked for by name."""

import json
import shutil

import pytest
import torch

import induction_memory as im
from induction_memory.errors import Error, InputError, StorageError
from induction_memory.views import share
from tests.test_files import disk_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return im.share("induction-small", tmp_path_factory.mktemp("share") / "shared")


def test_the_folder_loads_as_the_run_that_it_came_from(shared):
    run, copy = im.load("induction-small"), im.load(shared)
    assert copy.steps.tolist() == run.steps.tolist()
    assert torch.equal(copy.memory("W_O2"), run.memory("W_O2"))
    assert im.verify(shared) == []


def test_the_card_says_how_to_load_it_and_shows_figures_that_exist(shared):
    card = (shared / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: induction_memory\n")
    assert 'im.load("path/to/this/folder")' in card
    pictures = [line.split("(")[1].rstrip(")") for line in card.splitlines() if line.startswith("![")]
    assert len(pictures) == 2
    assert all((shared / picture).stat().st_size > 1000 for picture in pictures)
    assert json.loads((shared / "config.json").read_text())["task"] == im.load(shared).config.to_dict()["task"]


def test_it_is_uploaded_only_by_name(shared, tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    class Api:
        def create_repo(self, name, exist_ok):
            calls.append(name)

        def upload_folder(self, repo_id, folder_path):
            calls.append((repo_id, folder_path))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    im.share(im.load(shared), tmp_path / "here")
    assert calls == []
    im.share(im.load(shared), tmp_path / "there", upload="me/small")
    assert calls == ["me/small", ("me/small", str(tmp_path / "there"))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": "."}, "out: expected a new or an empty folder"),
        ({"upload": "small"}, "upload: expected owner/name"),
        ({"run": 3}, "source: expected a trajectory"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(unchecked, tmp_path, arguments, message):
    given = {"run": "induction-small", "folder": tmp_path / "new", "upload": None} | arguments
    with pytest.raises(InputError, match=message):
        im.share(given["run"], given["folder"], upload=given["upload"])
    assert not (tmp_path / "new").exists()


def test_a_damaged_run_is_not_shared_and_a_name_is_no_markup(tmp_path):
    whole = tmp_path / "<b>bold"
    shutil.copytree(im.load("induction-small").path, whole)
    out = im.share(whole, tmp_path / "shared")
    assert "<b>" not in (out / "README.md").read_text(encoding="utf-8").split("```")[0]
    file = whole / "trained.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"damaged!")
    with pytest.raises(InputError, match="run: expected undamaged files"):
        im.share(whole, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("size", [0, 20_000])
def test_a_full_disk_is_one_line(tmp_path, size):
    with disk_of(size), pytest.raises(StorageError, match=r"File too large") as told:
        im.share("induction-small", tmp_path / "shared")
    assert "\n" not in str(told.value)


def test_a_folder_of_others_is_one_line(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)  # an administrator may write everywhere
    with pytest.raises(StorageError, match="expected to write it, got Permission denied"):
        im.share("induction-small", tmp_path / "shared")


def test_a_share_that_was_killed_at_any_write_leaves_no_run(tmp_path, monkeypatch):
    run, written, write = im.load("induction-small"), [], share.write_file
    monkeypatch.setattr(share, "_figures", lambda *_: [])
    for last in range(20):
        out = tmp_path / str(last)

        def killed(path, content, out=out, last=last):
            if len(list(out.glob("*"))) > last + 1:  # the folder of figures is there
                raise KeyboardInterrupt
            write(path, content)
            written.append(path.name)

        monkeypatch.setattr(share, "write_file", killed)
        try:
            share.share(run, out)
        except KeyboardInterrupt:
            with pytest.raises(Error):
                im.load(out)
        else:
            break
    assert len(written) > 20
    assert torch.equal(im.load(out).memory("W_O2"), run.memory("W_O2"))
