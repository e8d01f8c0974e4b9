"""Result files are written whole or not at all; a stream or a disk that takes nothing is one line."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import matplotlib
import pandas as pd
import pytest
from matplotlib.figure import Figure

from induction_memory.errors import InputError, StorageError
from induction_memory.files import require_file, require_folder, write_figure, write_file
from induction_memory.terminal import ENDINGS, save

matplotlib.use("agg")


@contextmanager
def disk_of(size: int):
    """No file may grow beyond `size` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_on_a_full_disk_the_file_that_was_there_stays_and_nothing_is_left(size, tmp_path, knocks):
    table = pd.DataFrame({"value": range(10_000)})
    figure = Figure()
    figure.subplots().plot([0, 1])
    writers = {f"table{ending}": lambda path: save(table, path) for ending in ENDINGS}
    writers |= {f"figure{kind}": lambda path: write_figure(figure, path) for kind in (".png", ".svg")}
    writers["page.html"] = lambda path: write_file(path, "x" * 10_000)
    for name, write in writers.items():
        path = tmp_path / name
        path.write_text("before")
        with disk_of(size), pytest.raises(StorageError, match="File too large"):
            write(path)
        assert path.read_text() == "before"
        write(path)
        assert path.read_bytes() != b"before"
        knocks["full disks"] += 1
    assert sorted(os.listdir(tmp_path)) == sorted(writers)


def test_what_is_no_place_for_a_file_is_refused_before_the_work(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file.csv").write_text("kept")
    (tmp_path / "link.csv").symlink_to("/dev/full")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    wrong = [
        "",
        "folder.csv",
        "x.txt",
        "file.csv/x.csv",
        "link.csv",
        "loop.csv",
        "pipe.csv",
        "x" * 300 + ".csv",
        "a\0.csv",
    ]
    for name in [*(f"{tmp_path}/{name}" for name in wrong), "/proc/x.csv", None, 3, b"x.csv"]:
        with pytest.raises(InputError, match=r"^out: expected ") as error:
            require_file(name, [".csv"])
        assert "\n" not in str(error.value)
    for name in ("file.csv", "file.csv/x", "link.csv", "x" * 300):
        with pytest.raises(InputError, match=r"^out: expected "):
            require_folder(tmp_path / name)
    assert require_file(tmp_path / "new" / "x.csv", [".csv"]) == tmp_path / "new" / "x.csv"
    assert not (tmp_path / "new").exists()


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "file.csv")
    (tmp_path / "file.csv").write_text("before")
    write_file(tmp_path / "link.csv", "after")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "file.csv").read_text() == "after"


@pytest.mark.slow
@pytest.mark.parametrize("words", ["presets", "--help"])
def test_an_output_that_is_closed_full_or_broken_is_one_line_and_code_1(words, knocks):
    command = f"{sys.executable} -m induction_memory {words}"
    for where, told in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        ended = subprocess.run(["sh", "-c", f"{command} {where}"], capture_output=True, text=True, check=False)
        assert ended.returncode == 1, (where, ended)
        assert ended.stderr == f"induction-memory: standard output: expected to read or write it, got {told}\n", where
        knocks["closed or full outputs"] += 1
    broken = subprocess.run(["sh", "-c", f"{command} | true"], capture_output=True, text=True, check=False)
    assert broken.stderr == ""
    silent = subprocess.run(["sh", "-c", f"{command} 2>&- >/dev/null"], capture_output=True, text=True, check=False)
    assert silent.returncode == 0
