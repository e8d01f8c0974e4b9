"""Nothing on the disk is executed, and nothing asks for a network unless its name says so: read off the source."""

import ast
from pathlib import Path

import pytest

from induction_memory.model.bridge import ONLY_FILES

PACKAGE = Path(__file__).parents[1] / "induction_memory"
UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
NETWORK = {"socket", "urllib", "http", "requests", "httpx", "ftplib", "huggingface_hub"}
ALLOWED = {
    "model/bridge.py": "tells the hub's client to stay offline",
    "sweep/job.py": "a pair of sockets to its own process",
    "trajectory/series.py": "fetches by name: im.source.fetch_revisions",
    "trajectory/lock.py": "the name of this machine",
    "views/share.py": "uploads by name: im.share(..., upload=...)",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_executes_nothing_that_it_reads_and_opens_no_connection(path):
    tree, where = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(PACKAGE).as_posix()
    assert not names(tree) & UNSAFE
    assert where in ALLOWED or not names(tree) & NETWORK
    for call in calls(tree):
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        plain = isinstance(call.func, ast.Name)
        assert not (plain and name in ("eval", "exec", "__import__")), ast.unparse(call)
        if name == "load" and ast.unparse(call.func) == "torch.load":
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert given.get("weights_only") == "True", ast.unparse(call)
        if name in ("read_pickle", "to_pickle", "allow_pickle", "from_pretrained", "hf_hub_download"):
            local = any(word.arg is None and ast.unparse(word.value) == "ONLY_FILES" for word in call.keywords)
            assert (name, local) == ("from_pretrained", True), ast.unparse(call)
        assert not any(word.arg == "shell" for word in call.keywords), ast.unparse(call)


def test_a_checkpoint_is_read_from_its_files_alone_and_none_of_its_code_runs():
    assert ONLY_FILES == {"local_files_only": True, "trust_remote_code": False}
