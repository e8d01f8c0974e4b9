"""Where there is no fcntl, as on Windows, runs are read, probed, drawn and ablated; only writing runs is refused."""

import shutil
import subprocess
import sys

import pytest

from induction_memory.trajectory.search import PACKAGED

CODE = """
import os, sys, warnings
import matplotlib.pyplot, pandas, pyarrow.parquet, rich.console, safetensors.torch, scipy.stats, torch, tyro
import transformer_lens

for module in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[module] = None
for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "fchmod", "pread", "pwrite", "fork", "geteuid", "getuid"):
    vars(os).pop(name, None)
warnings.filterwarnings("error", category=EncodingWarning, module="induction_memory")  # Windows reads other than UTF-8

import induction_memory as im

run = im.load("run")
assert im.probes.recall(run).shape[0] == 5
assert len(im.ablate(run, step=600, heads="all", kind="zero")) == 3
im.attention(run, step=600, text="To be, or not to be").save("map.html")
im.attention(run, step=600, text="To be, or not to be").save("map.png")
assert im.verify(run.path) == []
assert run.model(600).cfg.n_layers == 2
try:
    im.thin(run, "copy", [600])
except im.errors.InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_the_parts_that_only_posix_has_everything_but_writing_runs_works(tmp_path):
    shutil.copytree(PACKAGED / "induction-small", tmp_path / "run")
    command = [sys.executable, "-X", "warn_default_encoding", "-c", CODE]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = "copy: expected a system with file locks (Linux, macOS or WSL) to write runs, got none\n"
    assert (ended.returncode, ended.stdout) == (0, told), ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.html", "map.png", "run"]
    assert list((tmp_path / "run" / ".cache").rglob("*.result")), "what was computed is kept"
