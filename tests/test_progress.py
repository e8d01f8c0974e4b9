import io
import sys

from induction_memory import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_where_nobody_watches(capsys):
    assert list(progress.track(range(3), "counting")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_bar_appears_in_a_terminal_when_the_work_takes_long(monkeypatch):
    for patience, shown in ((0.0, True), (60.0, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setenv("TERM", "xterm")
        assert list(progress.track(range(3), "counting")) == [0, 1, 2]
        assert ("counting" in terminal.getvalue()) == shown


def test_an_interruption_leaves_the_items_that_are_done():
    done = []
    try:
        for item in progress.track(range(9), "counting"):
            if item == 3:
                raise KeyboardInterrupt
            done.append(item)
    except KeyboardInterrupt:
        pass
    assert done == [0, 1, 2]
