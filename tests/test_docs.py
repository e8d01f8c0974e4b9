"""What the documentation prints runs, links lead somewhere, and everything public has its place."""

import ast
import inspect
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import induction_memory as im
from induction_memory.cli.app import COMMANDS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS), str(DOCS / "_ext")]
import api_pages  # noqa: E402
import blocks  # noqa: E402  (scripts of docs/, which is no package)
import check_site  # noqa: E402

PAGES = blocks.pages()
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
GROUPS = 2  # each imports TransformerLens once


def without_code(text):
    return re.sub(r"^(`{3,}).*?^\1\s*$", "", text, flags=re.S | re.M)


def anchors(path):
    """The anchors of a page's headings, as Sphinx and GitHub make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.M):
        plain = re.sub(r"[`*]|\[|\]\([^)]*\)", "", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(path):
    text = re.sub(r"`[^`\n]+`", "", without_code(path.read_text(encoding="utf-8")))
    wrong = []
    for link in LINK.findall(text):
        target, _, anchor = link.partition("#")
        if re.match(r"https?://", target) or "pages/" in target or "/api/" in target or target.startswith("api/"):
            continue  # pages of runs and of the API are made while the site is built; check_site.py looks at them
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_row_of_a_table_has_more_cells_than_its_head(path):
    wrong, expected = [], None
    for line in without_code(path.read_text(encoding="utf-8")).splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None  # a bar in code parts cells too
        wrong += [line] if expected is not None and found is not None and found != expected else []
        expected = found if expected is None or found is None else expected
    assert wrong == []


def test_every_page_is_in_a_table_of_contents():
    listed = {"index.md"}
    for path in DOCS.rglob("*.md"):
        for body in re.findall(r"```\{toctree\}(.*?)```", path.read_text(encoding="utf-8"), re.S):
            for line in body.splitlines():
                if line.strip() and not line.startswith(":"):
                    listed.add(str((path.parent / line.strip()).resolve().relative_to(DOCS)) + ".md")
    assert {str(path.relative_to(DOCS)) for path in PAGES if DOCS in path.parents} <= listed


def test_every_picture_is_made_by_a_command_that_the_gallery_names():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8").partition("## Every picture and its command")[2]
    made_by = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)`", page, re.M))
    pictures = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.png") if "_build" not in path.parts]
    makers = {picture: [pattern for pattern in made_by if fnmatchcase(picture, pattern)] for picture in pictures}
    assert {picture: found for picture, found in makers.items() if len(found) != 1} == {}
    assert set(made_by) == {pattern for found in makers.values() for pattern in found}, "a row without a picture"
    for command in made_by.values():
        program, first, *rest = command.split()
        assert program in blocks.COMMANDS
        if program == "python":
            file = f"{rest[0].replace('.', '/')}.py" if first == "-m" else first
            assert (ROOT / file).is_file(), command


def test_every_command_is_shown():
    page = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [command.__name__ for command in COMMANDS if f"induction-memory {command.__name__}" not in page] == []


def test_every_public_name_has_a_docstring():
    bare = [name for name in im.__all__ if not (getattr(im, name).__doc__ or "").strip()]
    assert bare == []


WITHOUT_EXAMPLE = {
    "im.paper.audit": "measures all runs that ship, for minutes",
    "im.paper.reproduce": "draws a figure of the paper, for seconds; docs/reproduction.md shows the result",
    "im.source.fetch_revisions": "needs the network",
    "im.sweep.start": "starts processes; docs/sweeps.md shows the call",
    "im.errors.StorageError": "a disk that is full or cannot be read",
    "im.task.Task": "a protocol; im.task.register shows a class that has it",
}


def test_every_name_and_every_room_has_its_place_in_the_reference():
    grouped = [name for group in api_pages.GROUPS.values() for name in group]
    assert sorted([*grouped, *(room for room in api_pages.ROOMS if "." not in room)]) == sorted(im.__all__)


def test_every_public_name_has_a_page_of_its_own_and_a_line_in_the_table_of_its_room():
    pages = api_pages.package_pages()
    named = {"induction_memory": [name for group in api_pages.GROUPS.values() for name in group]}
    for room in api_pages.ROOMS:
        pages |= api_pages.room_pages(room)
        named[room] = api_pages.names(room)[1]
    assert set(pages) == {*named, *(f"{room}/{name}" for room, found in named.items() for name in found)}
    for room, found in named.items():
        for name in found:
            assert re.search(rf":doc:`{name} <{room}/{name}>`\n     - \S.{{,180}}\.\n", pages[room]), (room, name)


def test_everything_public_that_can_be_called_has_an_example_in_its_docstring():
    public = {f"im.{name}": getattr(im, name) for name in im.__all__}
    for room in api_pages.ROOMS:
        module, found = api_pages.names(room)
        public |= {f"im.{room}.{name}": getattr(module, name) for name in found}
    called = {name: value for name, value in public.items() if inspect.isclass(value) or inspect.isroutine(value)}
    assert len(called) > 120
    assert {name for name, value in called.items() if ">>>" not in (value.__doc__ or "")} == set(WITHOUT_EXAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_what_a_page_prints_runs_and_shows_what_it_shows(group):
    pages = [str(path) for path in PAGES[group::GROUPS]]
    done = subprocess.run([sys.executable, DOCS / "blocks.py", *pages], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_number_that_drifts_is_noticed_and_rounding_is_not():
    assert blocks.alike("accuracy 0.951 of 64", "accuracy  0.952 of 64")
    assert not blocks.alike("accuracy 0.951 of 64", "accuracy 0.953 of 64")
    assert not blocks.alike("64 heads", "65 heads")
    assert not blocks.alike("a 1.0", "b 1.0")


def test_a_page_with_a_wrong_output_a_failing_block_and_a_wrong_sentence_is_refused(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    text = (
        "```python\nx = 2\nx + 1\n```\n\n```text\n{}\n```\n\nThere are {}<!--= x:d --> of them.\n\n```python\n{}\n```\n"
    )
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    for shown, said, block, wrong in ((3, 2, "x", 0), (4, 2, "x", 1), (3, 5, "x", 1), (3, 2, "1 / 0", 1)):
        page.write_text(text.format(shown, said, block))
        read = blocks.Page(page)
        read.run()
        assert len(read.wrong) == wrong, read.wrong
        assert "```text\n3\n```" in read.written()
        assert "There are 2<!--= x:d -->" in read.written()


def test_a_page_without_blocks_is_fine(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# Nothing to run\n")
    read = blocks.Page(tmp_path / "page.md")
    read.run()
    assert read.wrong == []


def test_commands_of_the_documentation_are_known_to_the_parser():
    for path in PAGES:
        for block in blocks.blocks(path.read_text(encoding="utf-8")):
            lines = {"console": [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]}
            shell = (
                blocks.commands(block.text) if block.language in ("", "bash", "sh") else lines.get(block.language, [])
            )
            for line in shell:
                assert line.split()[0] in blocks.COMMANDS, f"{path.name}: {line}"


def test_python_blocks_of_the_documentation_are_python():
    for path in PAGES:
        for block in blocks.blocks(path.read_text(encoding="utf-8")):
            if block.language == "python":
                ast.parse(block.text)


def test_the_check_of_the_site_sees_dead_links_anchors_red_formulas_and_addresses(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id=top></h1><a href="b.html#there">x</a><a href="#top">x</a>')
    (tmp_path / "b.html").write_text('<p id="there">fine</p>')
    assert check_site.problems(tmp_path) == []
    (tmp_path / "b.html").write_text('<a href="c.html"></a><span style="color:#cc0000"></span>')
    (tmp_path / "d.html").write_text('<script src="https://cdn.example/x.js"></script>')
    assert len(check_site.problems(tmp_path)) == 4
