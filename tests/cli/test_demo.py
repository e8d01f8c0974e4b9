import pytest

from induction_memory.cli.demo import demo
from induction_memory.errors import InputError


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
    (tmp_path / "out" / "trajectory" / "manifest.json").write_text("{}")
    (tmp_path / "out" / "curves.png").write_bytes(b"")
    (tmp_path / "out" / "page.html").write_bytes(b"")
    with pytest.raises(untrained):
        demo(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="got the file"):
        demo(tmp_path / "file")
