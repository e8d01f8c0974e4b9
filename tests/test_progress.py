import io
import sys

import pytest

from induction_memory import terminal as progress
from induction_memory.source.measuring import measure
from induction_memory.training.run import start
from tests.tiny_runs import tiny


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_where_nobody_watches(capsys):
    assert list(progress.track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_line_appears_in_a_terminal_when_the_work_takes_long_and_is_cleared(monkeypatch):
    for patience, shown in ((-1.0, True), (60.0, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setattr(progress, "PAUSE", -1.0)
        assert list(progress.track(range(3), "counting")) == [0, 1, 2]
        written = terminal.getvalue().split("\r")
        assert ("counting" in terminal.getvalue()) == shown
        assert [part.split()[2] for part in written[1:4]] == (["1/3,", "2/3,", "3/3,"] if shown else [])
        assert written[-1] == ""


def test_a_generator_counts_up_to_its_total(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    assert len(list(progress.track(iter("abc"), "runs", 3))) == 3
    assert [part.split()[2] for part in terminal.getvalue().split("\r")[1:4]] == ["1/3,", "2/3,", "3/3,"]
    assert max(map(len, terminal.getvalue().split("\r"))) < 80


def test_an_interruption_keeps_what_is_done_and_says_so(capsys):
    done = []
    with progress.keeping(done, "items"):
        for item in progress.track(range(9), "counting"):
            if item == 3:
                raise KeyboardInterrupt
            done.append(item)
    assert done == [0, 1, 2]
    assert capsys.readouterr().err == "interrupted: 3 items are kept\n"


def test_an_interruption_before_anything_is_done_is_raised():
    with pytest.raises(KeyboardInterrupt), progress.keeping([], "items"):
        raise KeyboardInterrupt


def test_work_inside_work_shares_the_line_and_says_where_the_outer_is(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    for _ in progress.track([0], "whole"):  # a single piece of work has no line of its own
        for _ in progress.track(range(2), "steps"):
            assert len(list(progress.track(range(3), "runs"))) == 3
    shown = [part.strip() for part in terminal.getvalue().split("\r") if part.strip()]
    assert [text.split(" #")[0].split(" .")[0] for text in shown] == [
        *["steps 1/2, runs"] * 3,
        "steps",
        *["steps 2/2, runs"] * 3,
        "steps",
    ]
    assert terminal.getvalue().endswith("\r")
    assert not progress._UNDER_WAY


def test_the_line_is_narrower_than_the_terminal_whatever_is_nested(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    for columns in (40, 80):
        monkeypatch.setattr(progress, "_columns", lambda columns=columns: columns)
        for _ in progress.track(range(3), "measuring what ships"):
            list(progress.track(range(16), "patched runs of the heads"))
        shown = [part for part in terminal.getvalue().split("\r") if part.strip()]
        assert max(map(len, shown)) == columns - 1
        assert "#" in shown[20] or columns == 40
        terminal.seek(0)
        terminal.truncate()


def test_the_time_left_is_that_of_the_outermost_work():
    works = [
        progress._Work("steps", total=4, cell=None, done=1, seconds=10.0, began=100.0),
        progress._Work("runs", total=9, cell=None, done=8, seconds=5.0, began=110.0),
    ]
    assert progress._described(works, now=110.0).endswith(" 8/9, 0:30 left")
    assert progress._described(works, now=115.0).endswith(" 8/9, 0:25 left")  # counts down during the second step
    assert progress._described([progress._Work("steps", 4, None, 0.0)], now=115.0).endswith(". 0/4")


@pytest.fixture
def cell(monkeypatch):
    """A cell of a notebook: the texts that each of its outputs shows, one after the other."""
    outputs: list[list[str]] = []

    class Handle:
        def __init__(self, texts):
            self.texts = texts

        def update(self, data, raw):
            self.texts.append(data["text/plain"])

    def display(data, raw, display_id):
        outputs.append([data["text/plain"]])
        return Handle(outputs[-1])

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress, "notebook_cell", lambda: 1)
    monkeypatch.setattr("induction_memory.training.board.notebook_cell", lambda: 1)
    monkeypatch.setattr(progress, "_LINE", progress.Line())
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "PAUSE", -1.0)
    return outputs


def test_a_cell_has_one_output_for_all_its_work_that_is_empty_in_the_end(cell):
    for what in ("steps", "draws"):
        assert list(progress.track(range(2), what)) == [0, 1]
    assert [[text[:5] for text in texts] for texts in cell] == [["steps", "steps", "", "draws", "draws", ""]]


def test_another_cell_has_an_output_of_its_own(cell, monkeypatch):
    for number in (1, 2):
        monkeypatch.setattr(progress, "notebook_cell", lambda number=number: number)
        assert list(progress.track(range(2), "steps")) == [0, 1]
    assert [len(texts) for texts in cell] == [3, 3]


def test_training_in_a_notebook_rewrites_one_line_and_leaves_the_last(cell, tmp_path):
    start(tiny(steps=6), tmp_path / "run")
    assert len(cell) == 1
    assert cell[0][-1].startswith("step 6/6 loss")


def test_a_program_that_has_only_imported_a_kernel_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", progress)
    assert progress.notebook_cell() is None


def test_progress_is_silent_or_a_function_which_only_the_outer_work_calls(monkeypatch):
    terminal, counts = Terminal(), []
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE", -1.0)
    monkeypatch.setattr(progress, "PAUSE", -1.0)

    def tell(done: int, total: int) -> None:
        counts.append((done, total))

    for told in (False, tell):
        for _ in progress.track(range(2), "steps", progress=told):
            list(progress.track(range(3), "runs"))
            list(progress.track(range(3), "more runs", progress=told))
    assert counts == [(1, 2), (2, 2)]
    assert terminal.getvalue() == ""


def test_a_log_has_a_plain_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_PAUSE", -1.0)
    assert list(progress.track(range(2), "steps")) == [0, 1]
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == ["steps 1/2", "steps 2/2"]


def test_an_error_within_work_that_is_not_shown_does_not_silence_what_follows():
    def fail(at):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        measure("induction-small", fail, step=[0, 100], progress=False)
    assert error.value.__traceback__ is not None
    assert not progress._UNDER_WAY
