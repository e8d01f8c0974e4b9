"""Thousands of steps in flat memory and with the same open files."""

import subprocess
import sys
from pathlib import Path

import pytest

from induction_memory import load


@pytest.mark.slow
@pytest.mark.parametrize("steps", [400, pytest.param(20_000, marks=pytest.mark.hard)])
def test_a_long_run_holds_its_memory_within_five_percent_and_its_files(steps, tmp_path, knocks):
    command = [sys.executable, "-m", "tests.long_haul", str(tmp_path / "run"), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-1000:]
    readings = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [step for step, _, _ in readings] == list(range(0, steps + 1, steps // 100))
    warm = readings[len(readings) // 10 :]
    memory = [kilobytes for _, kilobytes, _ in warm]
    assert max(memory) <= 1.05 * memory[0], memory
    assert len({handles for _, _, handles in warm}) == 1, warm
    assert len(load(tmp_path / "run").metrics) == steps + 1
    knocks["steps of a long run"] += steps
