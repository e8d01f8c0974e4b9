"""Mistakes by the hundred: each ends in one line of the package's own error, and leaves nothing on the disk."""

import itertools
import shutil
import sys

import pytest

import induction_memory as im
from induction_memory.cli import main
from induction_memory.errors import LONGEST
from induction_memory.training.run import start
from tests.fuzz.command_lines import command_lines, furnish, snapshot
from tests.fuzz.python_calls import calls, wrong_calls
from tests.network import NETWORK
from tests.tiny_runs import tiny

PARTS = 4
"""Of the long counts, for as many processes."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("runs") / "made", progress=False)


def refused(words, capsys, monkeypatch) -> str:
    """The exit code and what is wrong about how a command line was refused; nothing if all is right."""
    monkeypatch.setattr(sys, "argv", ["induction-memory", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    found = [f"exit code {ended.value.code}"] * (ended.value.code not in (1, 2)) + ["output"] * bool(out)
    found += [f"lines {err!r}"] * (err.count("\n") != 1 or len(err) > LONGEST + 100)
    named = words[:1] == ["verify"] or err.startswith("induction-memory: ")  # verify names the files that are damaged
    return "; ".join(found + ["no name"] * (not named))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(slice(0, 150), marks=pytest.mark.slow),
        *(pytest.param(slice(150 + part, None, PARTS), marks=pytest.mark.hard) for part in range(PARTS)),
    ],
)
def test_a_mistake_in_a_command_line_is_one_line_and_leaves_nothing(chosen, run, tmp_path, capsys, monkeypatch, knocks):
    furnish(tmp_path, run.path)
    monkeypatch.chdir(tmp_path)
    before = snapshot(tmp_path)
    for words in itertools.islice(command_lines(0), chosen.start, chosen.stop, chosen.step):
        assert not refused(words, capsys, monkeypatch), words
        assert snapshot(tmp_path) == before, words
        if "--scheduler" in words:  # which asks for an address by name
            NETWORK.attempts.clear()
        knocks["wrong command lines"] += 1
    assert knocks["wrong command lines"] > 100


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(slice(0, None, 7), marks=pytest.mark.slow),
        *(pytest.param(slice(part, None, PARTS), marks=pytest.mark.hard) for part in range(PARTS)),
    ],
)
def test_a_wrong_call_is_one_line_and_leaves_nothing(chosen, run, tmp_path, monkeypatch, knocks):
    own, place = tmp_path / "runs" / "made", tmp_path / "place"
    shutil.copytree(run.path, own)
    place.mkdir()
    monkeypatch.chdir(place)
    made = calls(im.load(own), place)
    before = snapshot(tmp_path)
    for words, function, arguments in itertools.islice(wrong_calls(made), chosen.start, chosen.stop, chosen.step):
        with pytest.raises(im.errors.InputError) as error:  # noqa: PT012
            function(**arguments)
            raise AssertionError(f"accepted: {words}")
        assert "\n" not in str(error.value), words
        assert len(str(error.value)) <= LONGEST + 10, words
        assert snapshot(tmp_path) == before, words
        knocks["wrong Python calls"] += 1
    assert knocks["wrong Python calls"] >= 200
