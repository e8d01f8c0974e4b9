"""The layers depend one way (DESIGN): read off the source, so that a lazy import inside a function counts too."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "induction_memory"
FILES = sorted(PACKAGE.rglob("*.py"))

LEAVES = ("errors", "field_docs", "fields", "files", "lazy", "shown_tokens", "terminal")
"""Every room may import them."""

ROOMS = (
    "task",
    "memory",
    "model",
    "runner",
    "experiment",
    "trajectory",
    "training",
    "source",
    "probes",
    "interventions",
    "heads",
    "views",
    "sweep",
    "paper",
    "cli",
)
"""A room imports only from rooms before it in this list (DESIGN)."""

ALONE = {"task", "memory"}
"""Import no other room at all."""

TRANSFORMER_LENS = {"model", "runner", "probes", "interventions", "heads", "views"}
NOT_FOR_A_CONFIG = {"torch", "transformer_lens", "pandas", "matplotlib"}
CONFIGS = [
    "task.bigrams",
    "model.config",
    "experiment.train_config",
    "experiment.run_config",
    "cli",
]


OF_THE_PAPER = ("__init__.py", "task/", "paper/", "experiment/presets.py", "model/constructed.py")
"""Where the paper's own task may be named: its room, its presets, the theory, and models that are built for it."""


def test_only_the_paper_s_own_rooms_name_the_paper_s_task():
    code = {path: re.sub(r"^ *(>>>|\.\.\.) .*$", "", path.read_text(), flags=re.M) for path in FILES}  # no examples
    named = [str(path.relative_to(PACKAGE)) for path, text in code.items() if "BigramTask" in text]
    assert [name for name in named if not name.startswith(OF_THE_PAPER)] == []
    assert len(named) > 5


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_layers_depend_one_way(path):
    ours = {n.split(".")[1] for n in imported(path) if n.startswith("induction_memory.")}
    if room(path) in ALONE:
        assert ours <= {room(path), *LEAVES}
    elif room(path) not in ("__init__", "__main__", *LEAVES):
        assert ours <= {*LEAVES, *ROOMS[: ROOMS.index(room(path)) + 1]}
    if room(path) not in TRANSFORMER_LENS:
        assert not any(n.split(".")[0] == "transformer_lens" for n in imported(path))
    assert not any(n.startswith("__future__.annotations") for n in imported(path))


@pytest.mark.parametrize("module", CONFIGS)
def test_configurations_and_the_command_line_load_nothing_heavy(module):
    code = f"import sys, induction_memory.{module}; print(*{{n.split('.')[0] for n in sys.modules}})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & NOT_FOR_A_CONFIG


def test_importing_the_package_loads_nothing_else():
    code = "import sys, induction_memory; print(*{n.split('.')[0] for n in sys.modules})"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & (NOT_FOR_A_CONFIG | {"numpy", "tyro", "rich"})


def test_no_name_of_a_package_is_also_one_of_its_modules():
    """`im.build` is the function, always: importing a module of that name would replace it."""
    for package in sorted({path.parent for path in FILES if path.name == "__init__.py"}):
        room = import_module(".".join(package.relative_to(PACKAGE.parent).parts))
        names = {name for name, where in getattr(room, "_WHERE", {}).items() if ":" in where}
        assert not names & {path.stem for path in package.iterdir()}, package
