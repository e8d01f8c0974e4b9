"""A command that is interrupted says so by its exit code, and leaves a complete file as it is."""

import shutil
import sys

import pandas as pd
import pytest

from induction_memory import terminal
from induction_memory.cli import app
from induction_memory.cli.output import Output
from induction_memory.training.run import start
from tests.tiny_runs import tiny


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


def stopping(count):
    """`track` with Ctrl-C after some items."""

    def track(items, *_, **__):
        for number, item in enumerate(items):
            if number == count:
                raise KeyboardInterrupt
            yield item

    return track


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return start(tiny(), tmp_path_factory.mktemp("runs") / "run", progress=False)


@pytest.mark.parametrize(
    "words",
    [
        "heads RUN --step all --sequences 4",
        "heads RUN --table births --sequences 4",
        "ablate RUN --step all --sequences 4",
        "probe RUN --probes all",
    ],
)
def test_a_command_over_steps_keeps_the_complete_file(run, words, tmp_path, monkeypatch, capsys, uninterrupted):
    file, whole = tmp_path / "a.csv", "step\n" + "".join(f"{step}\n" for step in run.steps)
    file.write_text(whole, encoding="utf-8")
    shutil.rmtree(run.keep, ignore_errors=True)
    monkeypatch.setattr("induction_memory.source.measuring.track", stopping(2))
    monkeypatch.setattr(
        sys, "argv", ["induction-memory", *words.replace("RUN", str(run.path)).split(), f"--out={file}"]
    )
    with pytest.raises(SystemExit) as stop:
        app.main()
    assert stop.value.code == 130
    assert file.read_text(encoding="utf-8") == whole
    assert (tmp_path / "a.part.csv").exists()
    assert "interrupted: 2 steps are kept\n" in capsys.readouterr().err


@pytest.mark.parametrize("expected", [True, False])
def test_interrupted_checks_of_the_theory_keep_the_complete_table(
    expected, tmp_path, monkeypatch, capsys, uninterrupted
):
    from induction_memory.paper import theory

    (tmp_path / "theory.csv").write_text("whole", encoding="utf-8")
    own = theory.table
    monkeypatch.setattr(theory, "track", stopping(1))
    monkeypatch.setattr(theory, "table", lambda *found: own(*found).assign(expected=expected))  # a surprise is code 1
    monkeypatch.setattr(sys, "argv", ["induction-memory", "theory", "lemma-1", "lemma-2", f"--out={tmp_path}"])
    with pytest.raises(SystemExit) as stop:
        app.main()
    told = capsys.readouterr()
    assert stop.value.code == 130
    assert (tmp_path / "theory.csv").read_text(encoding="utf-8") == "whole"
    assert "interrupted: 1 checks are kept" in told.err
    assert "lemma-1" in told.out
    assert "lemma-2" not in told.out
