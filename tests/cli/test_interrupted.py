"""A command that is interrupted says so by its exit code, and leaves a complete file as it is."""

import pandas as pd
import pytest

from induction_memory import terminal
from induction_memory.cli import app
from induction_memory.cli.output import Output


def partly():
    done = [1, 2, 3]
    with terminal.keeping(done, "steps"):
        raise KeyboardInterrupt
    return pd.DataFrame({"step": done})


@pytest.fixture
def uninterrupted(monkeypatch):
    monkeypatch.setattr(terminal, "_cut", [])


def test_an_interrupted_command_exits_with_130_beside_the_complete_file(tmp_path, monkeypatch, capsys, uninterrupted):
    file = tmp_path / "a.csv"
    pd.DataFrame({"step": range(22)}).to_csv(file, index=False)
    monkeypatch.setattr(app, "parse", lambda: lambda: Output(out=file).write(partly()))
    monkeypatch.setattr(app, "import_own_modules", lambda: None)
    with pytest.raises(SystemExit) as stop:
        app.main()
    assert stop.value.code == 130
    assert len(pd.read_csv(file)) == 22
    assert len(pd.read_csv(tmp_path / "a.part.csv")) == 3
    assert "interrupted: 3 steps are kept" in capsys.readouterr().err


def test_a_whole_result_is_written_and_exits_with_0(tmp_path, monkeypatch, uninterrupted):
    file = tmp_path / "a.csv"
    monkeypatch.setattr(app, "parse", lambda: lambda: Output(out=file).write(pd.DataFrame({"step": [1]})))
    monkeypatch.setattr(app, "import_own_modules", lambda: None)
    app.main()
    assert len(pd.read_csv(file)) == 1
