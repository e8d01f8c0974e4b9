"""docs/extending.md, run with the package as it is installed: a copy of it alone, away from the source tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)
PRINTED = "".join(re.findall(r"```text\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(), re.DOTALL))
ONE_AFTER_THE_OTHER = """
import json, sys
from induction_memory.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["induction-memory", *words]
    main()
"""


def test_each_walk_is_at_most_25_lines():
    lengths = [sum(bool(line.strip()) for line in block.splitlines()) for block in BLOCKS]
    assert len(lengths) >= 5
    assert max(lengths) <= 25


@pytest.mark.slow
def test_the_page_runs_with_the_package_as_installed_and_shows_up_on_the_command_line(tmp_path):
    shutil.copytree(ROOT / "induction_memory", tmp_path / "site" / "induction_memory")
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.py").write_text("\n".join(BLOCKS))
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}

    def run(*arguments, **more):
        done = subprocess.run([sys.executable, *arguments], cwd=work, env=clean | more, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("mine.py").split() == PRINTED.split()
    assert (work / "loss.png").stat().st_size > 5000
    named = work / "named.py"  # the first blocks alone: the decorated functions
    named.write_text("\n".join(BLOCKS[:2]))
    probes = run("-m", "induction_memory", "probe", "--list", INDUCTION_MEMORY_IMPORT="named.py")
    assert "norm_of_W_O              Frobenius norm of layer 2's output matrix" in probes
    lines = [
        ["ablate", "--list"],
        ["ablate", "induction-small", "--kind", "median", "--components", "L1H1", "--format", "csv"],
    ]
    kinds = run("-c", ONE_AFTER_THE_OTHER, json.dumps(lines), INDUCTION_MEMORY_IMPORT="named")
    assert "median                   the median of y over positions" in kinds
    assert "zero                     0" in kinds
    assert ",median," in kinds
