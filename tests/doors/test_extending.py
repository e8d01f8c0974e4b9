"""docs/extending.md with the package as it is installed: a copy of it alone, away from the source tree."""

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
ONE_AFTER_THE_OTHER = """
import json, os, sys
from induction_memory.cli import main
for own, *words in json.loads(sys.argv[1]):
    os.environ["INDUCTION_MEMORY_IMPORT"] = own
    sys.argv = ["induction-memory", *words]
    main()
"""


def test_each_walk_is_at_most_25_lines():
    lengths = [sum(bool(line.strip()) for line in block.splitlines()) for block in BLOCKS]
    assert len(lengths) >= 5
    assert max(lengths) <= 25


@pytest.mark.slow
def test_the_page_s_probe_and_ablation_show_up_on_the_command_line_of_the_package_as_installed(tmp_path):
    """tests/test_docs.py runs the whole page."""
    shutil.copytree(ROOT / "induction_memory", tmp_path / "site" / "induction_memory")
    work = tmp_path / "work"
    work.mkdir()
    (work / "probe.py").write_text(BLOCKS[0])
    (work / "ablation.py").write_text("import induction_memory as im\nrun = im.load('induction-small')\n" + BLOCKS[1])
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    lines = [
        ["probe.py", "probe", "--list"],
        ["ablation", "ablate", "--list"],
        ["ablation", "ablate", "induction-small", "--kind", "median", "--components", "L1H1", "--format", "csv"],
    ]
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(lines)]
    done = subprocess.run(command, cwd=work, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "norm_of_W_O              Frobenius norm of layer 2's output matrix" in done.stdout
    assert "median                   the median of y over positions" in done.stdout
    assert "zero                     0" in done.stdout
    assert ",median," in done.stdout
