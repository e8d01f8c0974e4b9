"""A user's task, model, probe, ablation and hook together, over a kill and in a new process."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "own_everything.py"


def run(*arguments, cwd):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], cwd=cwd, capture_output=True, text=True)


@pytest.mark.slow
def test_a_killed_run_of_a_users_own_model_on_a_users_own_task_is_analysed_in_a_new_process(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ended = run("train", str(whole), str(killed), cwd=tmp_path)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    looked = run("look", str(whole), str(killed), cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    found = json.loads(looked.stdout)
    assert found["steps before"] == [0, 10, 20]
    assert found["same"]
    assert found["frozen"] == ["blocks.0.ln1.w", "blocks.0.ln1.b", "unembed.b_U"]
    assert found["loss"][1] < found["loss"][0] - 0.2
    assert found["probes"] == ["entropy3", "size_of_attention"]
    assert list(found["skipped"]) == ["W_K1"]
    assert "\n" not in found["skipped"]["W_K1"]
    assert set(found["distances"]) == {"uniform", "bayes"}
    heads = [f"L{layer}H{head}" for layer in (1, 2, 3) for head in (1, 2)]
    assert found["heads"] == heads
    assert found["map"] == [True, pytest.approx(1, abs=1e-4)]
    assert found["ablated"] == 1 + 2 * 7
    assert found["hooks agree"] < 1e-5
    assert found["roles"] == heads
    assert found["combined"]
