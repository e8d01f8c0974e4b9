import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import fields

import pandas as pd
import pytest

from induction_memory import cli
from induction_memory.cli import app
from induction_memory.experiment.presets import PRESETS
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.model.config import ModelConfig
from induction_memory.paper.claims import CLAIMS
from induction_memory.paper.plan import TRAJECTORIES
from induction_memory.task.bigrams import BigramTask

TINY = [
    *("--set", "task.length=12", "--set", "model.n_ctx=12", "--set", "model.d_model=16"),
    *("--set", "train.batch_size=8", "--steps", "6", "--quiet"),
]


@pytest.fixture
def run(capsys, monkeypatch):
    """Call the command line in this process: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["induction-memory", *arguments])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["induction-memory", "train", "figure-4-uniform", "--out", str(folder), *TINY])
        cli.main()
    return folder


def test_help_answers_from_the_module_too():
    answer = subprocess.run([sys.executable, "-m", "induction_memory", "--help"], capture_output=True, text=True)
    assert answer.returncode == 0
    for command in (
        "demo",
        "presets",
        "train",
        "branch",
        "probe",
        "ablate",
        "patch",
        "surgery",
        "attention",
        "heads",
        "verify",
        "theory",
    ):
        assert command in answer.stdout


@pytest.mark.parametrize("command", [command.__name__ for command in app.COMMANDS])
def test_help_fits_80_columns_and_says_what_an_option_takes(command, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(command, "--help")
    text = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert code == 0
    assert [line for line in text.splitlines() if len(line) > 80 or "None" in line] == []
    assert "(default: )" not in text
    assert command != "branch" or "--steps INT" in text
    assert command != "surgery" or "a and its target. For W_O2 and W_F" in " ".join(re.sub(r"[│]", " ", text).split())


def test_presets_are_listed_and_shown(run):
    code, out, _ = run("presets", "figure-3-freeze-keys", "--format", "json")
    assert code == 0
    assert json.loads(out)["train"]["freeze"] == ["W_K1: ..300", "W_K2: ..300"]
    _, out, _ = run("presets", "figure-3-freeze-keys")
    assert 'train.freeze = ["W_K1: ..300", "W_K2: ..300"]' in out
    for name, config in (("model", ModelConfig), ("train", TrainConfig), ("task", BigramTask)):
        for field in fields(config):
            said = out.split(f"\n{name}.{field.name} = ")[1].splitlines()[1]
            assert said.startswith("    ")
            assert len(said.strip()) > 3


def test_presets_are_listed_by_figure_with_one_entry_for_the_step_sizes_of_figure_8(run):
    _, out, _ = run("presets")
    assert max(map(len, out.splitlines())) <= 80
    _, of_one, _ = run("presets", "figure-8")
    assert of_one.strip() in out
    assert of_one.startswith("Figure 8\n")
    headings = [line for line in out.splitlines() if line and line[0] != " "]
    assert headings == ["Beyond the figures", *(f"Figure {n}" for n in (2, 3, 4, 7, 8, 10, 11))]
    for name in PRESETS:
        assert (name in out) == (not name.startswith("figure-8"))
    assert out.count("figure-8") == 1
    for size in ("0.8", "3.2", "12.8", "51.2", "204.8"):
        assert size in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("presets", "figure-33"), "preset: expected a name that `presets` lists, got"),
        (("trian",), "expected a command, got 'trian'; did you mean train?"),
        ((), "expected a command, got nothing; known are demo, presets"),
        (
            ("train", "demo", "--out", "OUT", "--stepz", "3"),
            "train: expected a known option, got '--stepz'; did you mean",
        ),
        (("train", "demo", "--out", "OUT", "--steps", "many"), "train: --steps: expected INT, got 'many'"),
        (("train", "demo", "--out", "OUT", "--steps=many"), "train: --steps: expected INT, got 'many'"),
        (("train", "demo"), "train: expected --out PATH (folder of the trajectory)"),
        (("train", "demo", "--out"), "train: --out: expected PATH, got nothing"),
        (("ablate", "--formt", "csv", "OUT"), "ablate: expected a known option, got '--formt'; did you mean --format?"),
        (("ablate", "OUT", "more"), "ablate: expected no further argument, got 'more'"),
        (("ablate", "OUT", "--out", "t.txt"), "--out: expected a file ending in"),
        (("train", "demo", "--out", "OUT", "--set", "task.kk=3"), "task.kk: expected one of"),
        (("train", "demo", "--out", "OUT", "--set", "task.k=80"), "task.k: expected 1 to 65"),
        (("train", "demo", "--out", "OUT", "--set", "train.learning_rate=-1"), "train.learning_rate: expected"),
        (("train", "demo", "--out", "OUT", "--set", "nonsense"), "--set: expected PART.FIELD=VALUE"),
        (("train", "demo", "--out", "OUT", "--set", "=3"), "--set: expected PART.FIELD=VALUE, got '=3'"),
        (("train", "demo", "--out", "OUT", "--set"), "--set: expected PART.FIELD=VALUE, got nothing"),
        (("train", "demo", "--out", "OUT", "--set", "task.k=3", "task.kk=3"), "task.kk: expected one of"),
        (("train", "demo", "--out", "OUT", "--seed", "-1"), "seed: expected 0 to 3002399751580329"),
        (("branch", "OUT", "--out", "OUT", "--at", "x"), "branch: --at: expected INT, got 'x'"),
        (("surgery", "OUT", "--memory", "W_O2", "--transplant", "OUT@²"), "--transplant: expected RUN@STEP"),
        (("surgery", "OUT", "--memory", "W_O2", "--project", "--complement"), "--complement: expected it or --project"),
        (("train", "demo", "--out", "OUT", "--set", "train.threads=100000000"), "train.threads: expected 1 to 256"),
        (("probe",), "RUN: expected a trajectory's folder or name, or --list"),
        (("probe", "OUT"), "run: expected the folder of a trajectory"),
        (("verify", "OUT"), "run: expected the folder of a trajectory"),
        (("reproduce", "12", "--out", "OUT"), "figure: expected all, or one of 2, 3"),
        (("reproduce", "12", "--check"), "figure: expected all, or one of 2, 3"),
        (
            ("reproduce", "9", "--out", "OUT", "--workers", "0"),
            "--workers: expected a whole number from 1 to 1024",
        ),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(run, arguments, message, tmp_path):
    out_folder = tmp_path / "out"
    code, out, err = run(*(str(out_folder) if a == "OUT" else a for a in arguments))
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not out_folder.exists()


def test_a_mistake_is_one_plain_line_in_a_colour_terminal():
    command = [sys.executable, "-m", "induction_memory", "train", "demo", "--stepz", "3"]
    leader, follower = pty.openpty()
    environment = os.environ | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(command, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    said = os.read(leader, 4096).decode()
    os.close(leader)
    assert done.returncode == 2
    assert said == "induction-memory: train: expected a known option, got '--stepz'; did you mean --steps?\r\n"


def test_probes_of_a_run_print_as_table_csv_and_one_json_document(run, trained, tmp_path):
    code, out, err = run("probe", str(trained), "--step", "0,6", "--format", "json")
    assert code == 0
    rows = json.loads(out)
    assert [row["step"] for row in rows] == [0, 6]
    assert 0 <= rows[0]["W_O2"] <= 1
    assert "W_K2_triggers: needs fixed triggers" in err
    _, out, _ = run("probe", str(trained), "--format", "csv", "--probes", "W_O2")
    assert out.splitlines()[0] == "step,W_O2"
    _, out, _ = run("probe", str(trained), "--probes", "W_O2", "--out", str(tmp_path / "t.parquet"))
    assert (tmp_path / "t.parquet").exists()
    assert out == f"{tmp_path / 't.parquet'}\n"
    code, _, err = run("probe", str(trained), "--step", "0,5000")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = run("probe", str(trained), "--probes", "W_X")
    assert (code, err.count("\n")) == (2, 1)
    assert "'W_X'" in err


def test_settings_follow_one_set_or_each_its_own(run, tmp_path):
    sizes = ("task.length=12", "model.n_ctx=12", "model.d_model=16")
    together = ["--set", *sizes, "--set", "train.batch_size=8", "task.k=3"]
    code, out, _ = run("train", "figure-3", "--out", str(tmp_path / "run"), "--steps", "1", *together, "--quiet")
    assert (code, out) == (0, "")
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    found = config["task"]["length"], config["task"]["k"], config["model"]["d_model"], config["train"]["batch_size"]
    assert found == (12, 3, 16, 8)


def test_a_reason_is_told_once_for_all_the_probes_it_holds_for(run, trained):
    code, _, err = run("probe", str(trained), "--probes", "recall", "--step", "0")
    triggers = [line for line in err.splitlines() if "fixed triggers" in line]
    assert code == 0
    assert triggers == [
        "W_K2_triggers, W_K2_triggers_margin, W_K2_triggers_rank, W_K2_triggers_sir, W_K2_triggers_soft: "
        "needs fixed triggers, the task draws them at random or has none"
    ]


def test_a_branch_goes_on_from_a_stored_step(run, trained, tmp_path):
    code, out, _ = run("branch", str(trained), "--at", "3", "--out", str(tmp_path / "b"), "--freeze", "W_K1", "--quiet")
    assert (code, out) == (0, "")
    code, out, _ = run("verify", str(tmp_path / "b"))
    assert (code, "every checksum holds" in out) == (0, True)


def test_the_interventions_answer_on_the_command_line(run, trained, tmp_path):
    code, out, _ = run("ablate", str(trained), "--kind", "zero,mean", "--components", "heads,W_K2", "--format", "json")
    assert code == 0
    rows = [(row["component"], row["kind"]) for row in json.loads(out)]
    assert rows == [("none", "none"), *((part, kind) for part in ("L1H1", "L2H1", "W_K2") for kind in ("zero", "mean"))]
    code, out, _ = run("surgery", str(trained), "--memory", "W_K2", "--erase", "e->e", "--format", "json")
    assert {"target", "bystanders"} <= {row["group"] for row in json.loads(out)}
    code, out, _ = run("patch", str(trained), "--kind", "path", "--format", "csv")
    assert (code, "L2H1.k" in out) == (0, True)
    first = pd.read_csv(io.StringIO(out)).iloc[0]
    assert (first["source"], first["effect"]) == ("none", 0)
    code, out, _ = run("circuit", str(trained), "--sequences", "8", "--format", "json")
    assert (code, {row["edge"] for row in json.loads(out)} >= {"L1H1->L2H1.k", "L2H1->out"}) == (0, True)
    code, out, _ = run("circuit", str(trained), "--sequences", "8", "--table", "attribution", "--format", "csv")
    assert (code, "L1H1,L2H1.k" in out) == (0, True)
    code, out, _ = run("heads", str(trained), "--format", "json")
    assert [row["head"] for row in json.loads(out)] == ["L1H1", "L2H1"]
    code, _, _ = run("attention", str(trained), "--out", str(tmp_path / "map.svg"))
    assert (tmp_path / "map.svg").read_text().startswith("<?xml")
    code, out, err = run("heads", str(trained), "--table", "stability")
    assert (code, out, err.count("\n")) == (0, "", 1)
    assert "stability compares two or more runs" in err
    code, _, err = run("ablate", str(trained), "--components", "L9H9")
    assert (code, err.count("\n")) == (2, 1)
    code, out, _ = run("circuit", str(trained), "--sequences", "8", "--table", "curve")
    assert (code, "faithfulness" in out, "e-" in out) == (0, True, False)  # shares to three places, no rounding noise


def test_tables_in_the_terminal_fit_and_begin_with_the_intact_model(run, trained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("ablate", str(trained), "--components", "heads,W_K2")
    first, *lines = out.splitlines()
    rows = lines[[line.split()[0] for line in lines].index("component") + 1 :]
    assert (first, rows[0].split()[:2]) == ("step 6", ["none", "none"])
    accuracies = [float(row.split()[2]) for row in rows[1:] if row.split()[1] == "zero"]
    assert accuracies == sorted(accuracies)
    _, everything, _ = run("ablate", str(trained), "--components", "heads", "--columns", "all")
    assert "global_loss" in everything
    assert "global_loss" not in out
    _, surgery, _ = run("surgery", str(trained), "--memory", "W_K2", "--erase", "e", "--through", "L1H1")
    _, patched, _ = run("patch", str(trained))
    _, probed, _ = run("probe", str(trained), "--probes", "recall")
    _, heads, _ = run("heads", str(trained), "--table", "votes")
    for text in (out, everything, surgery, patched, probed, heads):
        assert max(map(len, text.splitlines())) <= 80


def test_a_run_inside_another_is_refused(run, trained):
    code, _, err = run("branch", str(trained), "--at", "3", "--out", str(trained / "inside"))
    assert (code, err.count("\n")) == (2, 1)
    assert "out: expected a folder outside of other runs" in err
    assert not (trained / "inside").exists()


def test_verify_names_what_is_damaged(run, trained, tmp_path):
    import shutil

    copy = shutil.copytree(trained, tmp_path / "copy")
    victim = max(copy.rglob("*.safetensors"), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-5] ^= 4
    victim.write_bytes(bytes(data))
    code, _, err = run("verify", str(copy))
    assert code == 1
    assert victim.name in err


@pytest.mark.parametrize("command", ["probe", "ablate", "patch"])
def test_a_file_that_cannot_hold_the_table_is_refused_before_the_work(run, tmp_path, command):
    (tmp_path / "folder.csv").mkdir()
    for name, message in (
        ("t.txt", "a file ending in .csv, .json, .parquet"),
        ("folder.csv", "a file, got the folder"),
    ):
        code, _, err = run(command, "no such run", "--out", str(tmp_path / name))
        assert (code, err.count("\n")) == (2, 1)
        assert f"--out: expected {message}" in err


def test_a_table_that_cannot_be_written_is_one_line(run, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, _, err = run("probe", str(trained), "--probes", "W_O2", "--out", str(tmp_path / "file" / "t.csv"))
    assert (code, err.count("\n")) == (2, 1)
    assert "--out: expected a file that can be written" in err


def test_probes_that_the_run_does_not_allow_are_a_mistake_when_no_other_is_asked_for(run, trained):
    code, out, err = run("probe", str(trained), "--probes", "W_K2_triggers")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "got 'W_K2_triggers', which needs fixed triggers" in err


@pytest.mark.hard  # `make test` recomputes them too, by tests/reproduction/test_audit.py
def test_the_claims_are_recomputed_from_what_ships(run):
    code, out, _ = run("reproduce", "--check", "--format", "json")
    assert code == 0
    rows = json.loads(out)
    first = next(row for row in rows if row["claim"] == "keys-wait")
    assert first["verdict"] == "holds"
    assert {row["verdict"] for row in rows} <= {"holds", "undecided", "does not hold", "no run"}
    assert {row["source"] for row in rows} == {"recomputed", "sealed"}


def test_a_check_without_runs_fails(run, tmp_path, monkeypatch):
    monkeypatch.setattr("induction_memory.paper.auditing.sealed_folder", lambda: tmp_path)
    without_runs = ("one-step-suffices", "starts-uniform", "weighs-alike", "fewer-outputs")
    fewer = {name: claim for name, claim in CLAIMS.items() if name not in without_runs}
    monkeypatch.setattr("induction_memory.paper.auditing.CLAIMS", fewer)
    code, out, err = run("reproduce", "--check")
    problems = 1 + len(TRAJECTORIES)  # what could not be checked, and each trajectory that is not there
    assert (code, err.count("\n")) == (1, problems)
    assert "measurements could not be checked: no run" in err
    assert f"0 of 24 hold, 24 without a run; {problems} problems" in out.splitlines()[-1]
    of_one = [claim for claim in fewer.values() if claim.figure == 3]
    code, out, err = run("reproduce", "3", "--check")
    assert all(" ".join(claim.says.split()[:4]) in " ".join(out.split()) for claim in of_one)
    assert max(map(len, out.splitlines())) <= 100
    assert (code, 0 < len(of_one) < len(fewer)) == (1, True)
    assert f"0 of {len(of_one)} hold" in out.splitlines()[-1]


def test_what_does_not_hold_comes_first_and_a_slip_reads_slip(run, monkeypatch):
    from induction_memory.paper.theory import COLUMNS

    rows = [
        ["a", "holds indeed", 1.0, 1.0, "± 0.1", True, True],
        ["b", "as printed [known slip]", 1.0, 2.0, "± 0.1", False, True],
        ["c", "a surprise", 1.0, 3.0, "± 0.1", False, False],
    ]
    monkeypatch.setattr("induction_memory.paper.theory.run", lambda *_, **__: pd.DataFrame(rows, columns=COLUMNS))
    code, out, _ = run("theory")
    assert code == 1
    lines = out.splitlines()
    assert lines[1::2][:3] == ["does not hold, c", "slip, b", "holds, a"]
    assert [line.split() for line in lines[2:6:2]] == [
        ["a", "surprise", "1", "3", "±", "0.1"],
        ["as", "printed", "1", "2", "±", "0.1"],
    ]
    assert lines[-1] == "3 statements: 1 holds, 1 slip, 1 does not hold"
