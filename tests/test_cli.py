import json
import subprocess
import sys

import pytest

from induction_memory import cli

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
    for command in ("demo", "presets", "train", "branch", "probe", "verify", "theory"):
        assert command in answer.stdout


def test_presets_are_listed_and_shown(run):
    code, out, _ = run("presets")
    assert code == 0
    assert "figure-3-freeze-keys" in out
    _, out, _ = run("presets", "figure-3-freeze-keys")
    assert json.loads(out)["train"]["freeze"] == ["W_K1: ..300", "W_K2: ..300"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("presets", "figure-33"), "preset: expected a name that `presets` lists, such as figure-3"),
        (("trian",), "Unrecognized options: trian"),
        (("train", "demo", "--out", "OUT", "--stepz", "3"), "--stepz"),
        (("train", "demo", "--out", "OUT", "--steps", "many"), "Error parsing --steps"),
        (("train", "demo", "--out", "OUT", "--set", "task.kk=3"), "task.kk: expected one of"),
        (("train", "demo", "--out", "OUT", "--set", "task.k=80"), "task.k: expected 1 to 65"),
        (("train", "demo", "--out", "OUT", "--set", "train.learning_rate=-1"), "train.learning_rate: expected"),
        (("train", "demo", "--out", "OUT", "--set", "nonsense"), "--set: expected PART.FIELD=VALUE"),
        (("probe",), "RUN: expected a trajectory's folder or name, or --list"),
        (("probe", "OUT"), "run: expected the folder of a trajectory"),
        (("verify", "OUT"), "run: expected the folder of a trajectory"),
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


def test_probes_of_a_run_print_as_table_csv_and_one_json_document(run, trained, tmp_path):
    code, out, err = run("probe", str(trained), "--steps", "0,6", "--format", "json")
    assert code == 0
    rows = json.loads(out)
    assert [row["step"] for row in rows] == [0, 6]
    assert 0 <= rows[0]["W_O2"] <= 1
    assert "W_K2_triggers: needs fixed triggers" in err
    _, out, _ = run("probe", str(trained), "--format", "csv", "--probes", "W_O2")
    assert out.splitlines()[0] == "step,W_O2"
    run("probe", str(trained), "--probes", "W_O2", "--out", str(tmp_path / "t.parquet"))
    assert (tmp_path / "t.parquet").exists()
    code, _, err = run("probe", str(trained), "--steps", "0,5000")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = run("probe", str(trained), "--probes", "W_X")
    assert (code, err.count("\n")) == (2, 1)
    assert "'W_X'" in err


def test_a_branch_goes_on_from_a_stored_step(run, trained, tmp_path):
    code, out, _ = run("branch", str(trained), "--at", "3", "--out", str(tmp_path / "b"), "--freeze", "W_K1", "--quiet")
    assert (code, out) == (0, "")
    code, out, _ = run("verify", str(tmp_path / "b"))
    assert (code, "every checksum holds" in out) == (0, True)


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
