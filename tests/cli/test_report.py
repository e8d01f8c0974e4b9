import pytest

from induction_memory.cli.app import main
from induction_memory.training.run import start
from tests.tiny_runs import tiny
from tests.views.page_runs import hostile_run


def test_the_command_writes_a_page(monkeypatch, capsys, tmp_path):
    hostile_run(tmp_path / "run", steps=4)
    out = tmp_path / "page.html"
    arguments = ["report", str(tmp_path / "run"), "--out", str(out), "--length", "12", "--sequences", "1", "--quiet"]
    monkeypatch.setattr("sys.argv", ["induction-memory", *arguments])
    main()
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_folder_of_runs_is_one_table_on_a_page(monkeypatch, capsys, tmp_path):
    start(tiny(), tmp_path / "runs" / "a", progress=False)
    monkeypatch.setattr(
        "sys.argv", ["induction-memory", "report", str(tmp_path / "runs"), "--out", f"{tmp_path}/x.html"]
    )
    main()
    assert capsys.readouterr().out == f"{tmp_path}/x.html\n"
    assert "1 runs: 1 finished" in (tmp_path / "x.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["induction-alone", "--out", "page.pdf"], "--out: expected a file ending in .html"),
        (["induction-alone", "--out", "."], "--out: expected a file ending in .html"),
        (["--out", "page.html"], "RUN: expected at least one"),
        (["nowhere", "--out", "page.html"], "run: expected the folder of a trajectory"),
        (["induction-alone", "--out", "page.html", "--step", "x"], "--step: expected last, all, or whole numbers"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(monkeypatch, capsys, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["induction-memory", "report", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = capsys.readouterr().err
    assert stopped.value.code == 2
    assert message in shown
    assert shown.count("\n") == 1
