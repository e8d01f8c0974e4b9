import pytest

from induction_memory.cli.demo import demo
from induction_memory.errors import InputError
from induction_memory.trajectory.lock import locked
from induction_memory.trajectory.manifest import Manifest
from tests.tiny_runs import tiny


@pytest.fixture
def untrained(monkeypatch):
    """The demo stops where it would begin to train."""

    class TrainingError(Exception):
        pass

    def start(*_, **__):
        raise TrainingError

    monkeypatch.setattr("induction_memory.training.run.start", start)
    return TrainingError


MINE = ("thesis.tex", "trajectory/thesis.tex", "curves.png/thesis.tex", "page.html/thesis.tex")


@pytest.mark.parametrize("mine", MINE)
def test_the_demo_deletes_nothing_that_is_not_a_demo_s(tmp_path, untrained, mine):
    file = tmp_path / "out" / mine
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    if mine == "thesis.tex":
        (tmp_path / "out" / "trajectory").mkdir()
    with pytest.raises(InputError, match="--out: expected a new folder, or an earlier demo's"):
        demo(tmp_path / "out")
    assert file.read_text() == "mine"


def test_the_demo_replaces_an_earlier_one_and_refuses_a_file(tmp_path, untrained):
    (tmp_path / "out" / "trajectory").mkdir(parents=True)
    Manifest(state="training", config=tiny().to_dict()).write(tmp_path / "out" / "trajectory")
    (tmp_path / "out" / "curves.png").write_bytes(b"")
    (tmp_path / "out" / "page.html").write_bytes(b"")
    with pytest.raises(untrained):
        demo(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="got the file"):
        demo(tmp_path / "file")


def test_a_second_demo_in_the_folder_of_a_running_one_is_refused_and_takes_nothing_away(tmp_path, untrained):
    trajectory = tmp_path / "out" / "trajectory"
    trajectory.mkdir(parents=True)
    Manifest(state="training", config=tiny().to_dict()).write(trajectory)
    for held in (tmp_path / "out", trajectory):
        with locked(held), pytest.raises(InputError, match="expected a folder no other process trains in"):
            demo(tmp_path / "out")
        assert (trajectory / "manifest.json").exists()
