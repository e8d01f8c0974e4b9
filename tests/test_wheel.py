"""Installed from a wheel, away from the source tree, the package loads what it brings and says where the rest lies."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import induction_memory as im
from induction_memory import verify
from induction_memory.errors import InputError
from induction_memory.trajectory import search

ROOT = Path(__file__).parents[1]


def test_names_are_looked_for_in_the_variable_the_working_folder_the_source_and_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search, "SHIPPED", tmp_path / "nowhere")
    assert im.load("induction-small").steps.tolist() == [0, 100, 200, 300, 600]
    assert verify("induction-small") == []
    with pytest.raises(InputError, match=r"one of induction-small, got 'frozen-keys' \(the shipped ones are in"):
        im.load("frozen-keys")
    shutil.copytree(search.PACKAGED / "induction-small", tmp_path / "checkpoints" / "here")
    assert im.load("here").path == Path("checkpoints/here")
    monkeypatch.setenv("INDUCTION_MEMORY_PATH", f"{tmp_path / 'none'}{os.pathsep}{ROOT / 'checkpoints'}")
    assert im.load("frozen-keys").path == ROOT / "checkpoints" / "frozen-keys"


def test_the_trajectory_in_the_package_is_five_steps_of_induction_alone():
    small, whole = im.load("induction-small"), im.load("induction-alone")
    assert small.stack("W_O2").equal(whole.stack("W_O2", small.steps.tolist()))
    assert small.metrics.equals(whole.metrics)


@pytest.mark.hard
def test_a_wheel_works_outside_of_the_source_tree(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "induction_memory", source / "induction_memory")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source)]
    subprocess.run([*pip, *wheels], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    code = "import induction_memory as im; print(im.__file__, im.__version__, len(im.load('induction-small').steps))"
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": str(target)}
    said = subprocess.run([sys.executable, "-c", code], cwd="/", env=clean, capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(target / "induction_memory" / "__init__.py"), im.__version__, "5"]
