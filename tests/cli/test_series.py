"""Series of checkpoints that others trained, the whole way from the shell."""

import base64
import json
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from induction_memory import cli
from induction_memory.trajectory.series import BESIDE
from induction_memory.views.page.pack import unpack
from tests.trajectory.series import write_series

STEPS = [0, 100, 200, 300, 400, 500, 600]
HEADS = ["L1H1", "L1H2", "L2H1", "L2H2"]


@pytest.fixture(scope="module", params=["neox", "gpt2"])
def sound(request, tmp_path_factory):
    return write_series(request.param, tmp_path_factory.mktemp(request.param), STEPS)


@pytest.fixture
def call(capsys, monkeypatch):
    def run(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["induction-memory", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
@pytest.mark.parametrize("sound", ["neox"], indirect=True)
def test_a_planted_series_is_found_out_by_the_shell(sound, tmp_path):
    planted = shutil.copytree(sound, tmp_path / "planted", ignore=shutil.ignore_patterns(str(BESIDE)))
    shutil.rmtree(planted / "step200")
    for file in (planted / "step400").glob("*.safetensors"):
        shutil.copy(planted / "step300" / file.name, file)
    shard = sorted((planted / "step600").glob("*.safetensors"))[0]
    shutil.copy(planted / "step500" / shard.name, shard)
    command = [sys.executable, "-m", "induction_memory", "verify", str(planted)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 1
    lines = answer.stderr.splitlines()
    assert any(line.startswith("step 400 (step 300): identical checkpoint") for line in lines)
    assert any(line.startswith(f"step 600 (step 500): identical shard: {shard.name}") for line in lines)
    assert any("step 200 is missing" in line for line in lines)
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
def test_every_command_reads_a_series(sound, call, tmp_path):
    assert call("verify", sound) == (0, f"{sound}: 7 checkpoints, nothing odd\n", "")

    code, out, _ = call("probe", sound, "--step", "0,600", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [row["step"] for row in rows] == [0, 600]
    assert 0 < rows[1]["repeated_induction2[L2H1]"] < 0.2  # nothing was trained
    assert len(list((sound / BESIDE).glob("*.result"))) == 2

    code, out, _ = call("probe", sound, "--step", "600", "--tokens", "1", "2", "3", "--format", "json")
    recalled = pd.DataFrame(json.loads(out))
    assert code == 0
    assert sorted(set(recalled["head"])) == HEADS
    assert set(recalled["circuit"]) == {"QK", "OV"}

    ablate = ("ablate", sound, "--step", "0,600", "--components", "heads", "--format", "json")
    code, out, _ = call(*ablate)
    lost = pd.DataFrame(json.loads(out))
    assert code == 0
    assert lost["step"].tolist() == [0] * 5 + [600] * 5
    assert lost["component"].tolist() == ["none", *HEADS] * 2
    assert call(*ablate)[1] == out

    code, out, _ = call("heads", sound, "--format", "json", "--sequences", "4")
    assert code == 0
    assert [row["head"] for row in json.loads(out)] == HEADS

    picture = tmp_path / "maps.svg"
    assert call("attention", sound, "--step", "0,600", "--out", picture)[0] == 0
    assert picture.read_text().count("layer 2, step 600") == 1
    assert call("attention", sound, "--text", "the tree", "--out", picture)[::2] == (
        2,
        "induction-memory: text: expected a series that brings a tokenizer (without one, give tokens by number), "
        f"got {sound.name}, which has none\n",
    )
    code, _, err = call("patch", sound)
    assert code == 2
    assert "expected a trajectory for this command, got a series" in err


@pytest.mark.slow
@pytest.mark.parametrize("sound", ["neox"], indirect=True)
def test_the_page_of_a_series_holds_its_findings_curves_and_steps(sound, call, tmp_path):
    page = tmp_path / "series.html"
    code, out, err = call("report", sound, "--step", "0,300,600", "--out", page, "--quiet")
    assert (code, out, err) == (0, f"{page}\n", "")
    (shown,) = unpack(base64.b64decode(re.search(r'id="data">([^<]*)', page.read_text())[1]))[0]["runs"]
    assert shown["steps"] == shown["causes"]["steps"] == [0, 300, 600]
    assert "missing" not in " ".join(shown["files"])
    assert {curve["group"] for curve in shown["curves"]} == {"loss", "accuracy", "previous", "induction"}
