"""One address, one version and one date, wherever the project says them; workflows that call what the Makefile has."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jupytext
import pytest

import induction_memory as im
from induction_memory.trajectory import search
from tests.pins import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
NOTEBOOKS = [path for path in (ROOT / "docs" / "notebooks").glob("*.md") if path.with_suffix(".ipynb").exists()]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_address_of_the_project_is_that_of_its_metadata():
    owner, name = SOURCE.removeprefix("https://github.com/").split("/")
    places = [ROOT / one for one in ("README.md", "CITATION.cff", "CONTRIBUTING.md", "pyproject.toml")]
    places += [Path(search.__file__), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "notebooks").glob("*.ipynb")]
    found = {}
    for path in places:
        content = path.read_text(encoding="utf-8")
        found[path] = re.findall(rf"github(?:\.com)?/([\w-]+)/{name}\b|https://([\w-]+)\.github\.io", content)
    assert {one or other for owners in found.values() for one, other in owners} == {owner}
    assert sum(map(len, found.values())) > 10
    assert search.SOURCE == SOURCE


def test_the_version_and_its_date_are_the_same_everywhere():
    date = re.search(rf"^## {re.escape(im.__version__)} \((\d{{4}})-(\d\d)-(\d\d)\)$", text("CHANGELOG.md"), re.M)
    assert date is not None, "the changelog dates the version"
    citation = text("CITATION.cff")
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == im.__version__
    assert re.search(r"^date-released: (.*)$", citation, re.M)[1] == "-".join(date.groups())
    software = text("README.md").partition("@software{")[2]
    assert re.search(r"version = \{(.*)\}", software)[1] == im.__version__
    assert re.search(r"year    = \{(.*)\}", software)[1] == date[1]


def test_workflows_run_targets_of_the_makefile_on_every_python_of_the_metadata():
    workflows = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")}
    assert set(workflows) == {"ci", "docs", "release"}
    targets = set(re.search(r"^\.PHONY: (.*)$", text("Makefile"), re.M)[1].split())
    called = {name for content in workflows.values() for name in re.findall(r"\bmake ([\w-]+)", content)}
    called |= set(re.findall(r"versions: \[?([\w-]+)", workflows["ci"]))
    assert {"test", "test-oldest", "test-newest", "test-tl4", "docs", "release", "pages"} <= called <= targets
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert re.findall(r"\d\.\d+", re.search(r"python: \[(.*)\]", workflows["ci"])[1]) == classified
    assert PROJECT["requires-python"] == f">={classified[0]}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_the_package_where_it_is_missing_and_opens_in_colab(path):
    title, set_up, *_ = jupytext.read(path).cells
    where = f"{SOURCE.removeprefix('https://')}/blob/main/docs/notebooks/{path.stem}.ipynb"
    assert f"](https://colab.research.google.com/{where.replace('github.com', 'github')})" in title.source
    assert f"git clone -q --depth 1 {SOURCE} " in set_up.source
    assert "%pip install" in set_up.source
    same = jupytext.read(NOTEBOOKS[0]).cells[1].source
    assert set_up.source == same


def test_the_error_of_a_shipped_run_that_is_not_there_says_how_to_get_it(tmp_path):
    code = "import induction_memory as im; from induction_memory.trajectory import search; from pathlib import Path\n"
    code += "search.SHIPPED = Path('nowhere')\nim.load('random-triggers')"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    told = ended.stderr.strip().splitlines()[-2]
    assert f"git clone {SOURCE}, and name that folder in INDUCTION_MEMORY_PATH)" in told
