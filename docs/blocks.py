"""Run what the documentation prints, and compare it with what the documentation shows.

    python docs/blocks.py                      # check every page
    python docs/blocks.py docs/guides/heads.md --write     # fill in outputs, numbers and pictures

What a page can hold:

    ```python        run in order, in one namespace per page
    ```text          right after it: what the block prints, and the value of its last line
    <!-- shown -->   right after it: the same as Markdown, up to <!-- end -->
    ```toml          written to the file that its first line names: # sweep.toml
    ```console       lines after "$ " are commands, the others are what they print
    ``` or ```bash   one command per line, run in the same folder
    0.95<!--= x:.2f -->   a number in a sentence, from the names of the blocks before it
    ![...](a.png)    a picture, made by the page's blocks if one of them writes a file of that name

A command whose comment, or a block one of whose lines of comment, speaks of minutes or hours or says what it needs (a
cluster, a running kernel) is not run, only parsed: the reader is told why.
Each page runs in a process of its own, in a folder of its own with links to `checkpoints` and `analyses`.
"""

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = re.compile(r"#.*\b(minutes?|hours?|needs)\b")
INLINE = re.compile(r"([^\s(|]+?)<!--=\s*(.+?)\s*-->")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+\.png)\)")
NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")
COMMANDS = (
    "induction-memory",
    "make",
    "pip",
    "python",
    "git",
    "cd",
    "export",
    "python3",
    ".venv/bin/pip",
    "pre-commit",
    ".venv/bin/induction-memory",
)
ROUNDING = 1e-12
"""Numbers below it are errors of rounding, which differ from one processor to another."""
GENERATED = ("docs/reproduction.md", "docs/theory.md", "docs/heads.md")
"""Pages that other commands write, with outputs of their own; their commands are parsed."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the lines of the page that it fills."""

    language: str
    text: str
    first: int
    last: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, directives left out."""
    found, language, start, fence = [], None, 0, ""
    for number, line in enumerate(page.splitlines()):
        match = re.match(r"(`{3,})([\w{}:-]*)", line)
        if language is None and match:
            fence, language, start = match[1], match[2], number
        elif language is not None and line.strip() == fence:
            body = page.splitlines()[start + 1 : number]
            if not language.startswith("{"):
                found.append(Block(language, "\n".join(body), start, number))
            language = None
    return found


def pages() -> list[Path]:
    """README, CONTRIBUTING and every page of docs/ but the notebooks, which have a test of their own."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    kept = [p for p in docs if not {"notebooks", "_build", "pages", "api"} & set(p.relative_to(ROOT / "docs").parts)]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *kept]


class Page:
    """A page that is run from top to bottom. `text` is what it should say, `wrong` what it says otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.names: dict = {"__name__": "__main__"}
        self.wrong: list[str] = []
        self.new: dict[int, tuple[int, list[str]]] = {}  # first line -> (last line, what should stand there)

    def run(self) -> None:
        """Run every block in the working folder, then compare pictures."""
        found = blocks("\n".join(self.lines))
        done = 0
        for block, following in zip(found, [*found, None][1:], strict=True):
            if block.first < done:
                continue
            self.inline(done, block.first)
            done = block.last + 1
            self.one(block, following)
        self.inline(done, len(self.lines))

    def one(self, block: Block, following: Block | None) -> None:
        generated = str(self.path.relative_to(ROOT)) in GENERATED
        try:
            if block.language == "python":
                shown = "" if generated else self.python(block)
                if following and following.language == "text" and not generated and self.adjacent(block, following):
                    self.compare(following, shown)
                elif not generated and (table := self.table(block)):
                    self.compare(table, shown)
            elif block.language == "console":
                self.console(block)
            elif block.language == "toml" and (name := re.match(r"# ([\w-]+\.toml)", block.text)):
                Path(name[1]).write_text(block.text, encoding="utf-8")
            elif block.language in ("", "bash", "sh"):
                for line in commands(block.text):
                    self.command(line, parse_only=generated)
        except SystemExit as stop:
            self.wrong.append(f"{self.where(block)}: a command ended with {stop.code}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            self.wrong.append(
                f"{self.where(block)}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
            )

    def adjacent(self, block: Block, following: Block) -> bool:
        return not any(line.strip() for line in self.lines[block.last + 1 : following.first])

    def table(self, block: Block) -> Block | None:
        """The lines between `<!-- shown -->` right after a block and `<!-- end -->`."""
        first = block.last + 2
        if self.lines[first : first + 1] != ["<!-- shown -->"]:
            return None
        last = self.lines.index("<!-- end -->", first)
        return Block("", "\n".join(self.lines[first + 1 : last]).strip(), first, last)

    def where(self, block: Block) -> str:
        return f"{self.path.relative_to(ROOT)}:{block.first + 1}"

    def python(self, block: Block) -> str:
        """Run a block; what it prints, and its last value as a notebook would show it."""
        tree = ast.parse(block.text)
        if any(LONG.match(line) for line in block.text.splitlines()):
            return ""
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, str(self.path), "exec"), self.names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), str(self.path), "eval"), self.names)
                if value is not None and not block.text.rstrip().endswith(";"):
                    print(value if isinstance(value, str) else repr(value))
        return printed.getvalue().rstrip()

    def console(self, block: Block) -> None:
        """Run the commands after "$ " and compare what they print."""
        lines = []
        for line in block.text.splitlines():
            if line.startswith("$ "):
                lines.append(line)
                if not LONG.search(line):
                    lines += self.command(line[2:]).rstrip().splitlines()
        self.compare(block, "\n".join(lines))

    def command(self, line: str, parse_only: bool = False) -> str:
        """Run one command of the shell; what it prints."""
        words = shlex.split(line, comments=True)
        assert words[0] in COMMANDS, f"expected a command out of {', '.join(COMMANDS)}, got {line!r}"
        if words[0].endswith("induction-memory"):
            return cli(words[1:], run=not (parse_only or LONG.search(line)))
        if words[0] == "make":
            rules = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(words[1:]) <= set(" ".join(rules).split()), f"no target {words[1:]} in the Makefile"
        elif words[0] == "python" and words[1:2] != ["-m"]:
            assert (ROOT / words[1]).exists(), f"no file {words[1]}"
            if not (parse_only or LONG.search(line)):
                done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, env=environment())
                assert done.returncode == 0, f"{line}: {done.stderr[-300:]}"
                return done.stdout
        return ""

    def compare(self, block: Block, shown: str) -> None:
        shown = "\n".join(line.rstrip() for line in shown.splitlines())
        if not alike(block.text, shown):
            self.wrong.append(f"{self.where(block)}: shows\n{block.text}\nbut comes out as\n{shown}")
        lines = shown.splitlines() if block.language else ["", *shown.splitlines(), ""]
        self.new[block.first + 1] = (block.last, lines)

    def inline(self, first: int, last: int) -> None:
        """Compare the numbers of the sentences between two blocks."""
        for number in range(first, last):
            line = self.lines[number]

            def filled(match: re.Match, number: int = number) -> str:
                value = eval(f"f'''{{{match[2]}}}'''", self.names)
                head = re.search(r"[^\d.+-]*$", "") and re.match(r"[*`(]*", match[1])[0]
                tail = re.search(r"[*`)]*$", match[1])[0]
                if not alike(match[1].strip("*`()"), value):
                    self.wrong.append(f"{self.path.relative_to(ROOT)}:{number + 1}: says {match[1]}, is {value}")
                return f"{head}{value}{tail}<!--= {match[2]} -->"

            if "<!--=" in line:
                try:
                    self.new[number] = (number + 1, [INLINE.sub(filled, line)])
                except Exception as error:
                    self.wrong.append(f"{self.path.relative_to(ROOT)}:{number + 1}: {type(error).__name__}: {error}")

    def pictures(self, folder: Path, write: bool) -> None:
        """Compare the pictures that the page's blocks have written with those that it shows: their kind and size."""
        for name in PICTURE.findall("\n".join(self.lines)):
            made, shown = folder / Path(name).name, self.path.parent / name
            if made.exists() and write:
                shown.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(made, shown)
            elif not shown.exists():
                self.wrong.append(f"{self.path.relative_to(ROOT)}: no picture {name}")
            elif made.exists() and not same_size(made, shown):
                self.wrong.append(f"{self.path.relative_to(ROOT)}: {name} is {size(shown)}, comes out as {size(made)}")

    def written(self) -> str:
        """The page with what its blocks gave."""
        lines = list(self.lines)
        for first in sorted(self.new, reverse=True):
            last, text = self.new[first]
            lines[first:last] = text
        return "\n".join(lines) + "\n"


def commands(text: str) -> list[str]:
    """The commands of a block, one per line; a backslash at the end of a line joins it to the next."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def cli(arguments: list[str], run: bool) -> str:
    """Parse a command of `induction-memory` as the shell would, and run it; what it prints."""
    from induction_memory.cli.app import parse

    before, sys.argv = sys.argv, ["induction-memory", *arguments]
    printed = io.StringIO()
    try:
        if "--help" in arguments or not arguments:
            with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
                parse()
            return printed.getvalue()
        ready = parse()
        if run:
            with contextlib.redirect_stdout(printed):
                ready()
    finally:
        sys.argv = before
    return printed.getvalue()


def alike(one: str, other: str) -> bool:
    """Equal words, and numbers that are equal up to one unit of the last digit shown, or both rounding errors.

    Spaces do not count.
    """
    a, b = (re.sub(r"-{3,}|─+", "-", text).split() for text in (one, other))
    return len(a) == len(b) and all(x == y or _close(x, y) for x, y in zip(a, b, strict=True))


def _close(one: str, other: str) -> bool:
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    for x, y in zip(NUMBER.findall(one), NUMBER.findall(other), strict=True):
        digits = len(x.partition(".")[2].partition("e")[0])
        unit = 10.0 ** (-digits + (int(x.partition("e")[2]) if "e" in x else 0))
        if digits == 0 and "e" not in x and x != y:
            return False  # whole numbers are counts
        first, second = float(x.replace(",", "")), float(y.replace(",", ""))
        rounding = "e" in x and max(abs(first), abs(second)) < ROUNDING
        if not rounding and abs(first - second) > 1.01 * unit:
            return False
    return True


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n", f"{path} is no PNG"
    return struct.unpack(">II", head[16:24])


def same_size(one: Path, other: Path) -> bool:
    """Two PNGs whose sides differ by 3 % at most: fonts move a tight border by some pixels."""
    return all(abs(a - b) <= 0.03 * max(a, b) for a, b in zip(size(one), size(other), strict=True))


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100", "MPLBACKEND": "agg"}


def run_page(path: Path, write: bool) -> int:
    """Run one page in a folder of its own; 1 if anything was otherwise than the page says."""
    import pandas as pd

    pd.set_option("display.width", 110, "display.max_columns", 20, "display.max_rows", 14, "display.precision", 3)
    page, start = Page(path), time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shared in ("checkpoints", "analyses"):
            (folder / shared).symlink_to(ROOT / shared)
        os.chdir(folder)
        page.run()
        page.pictures(folder, write)
        os.chdir(ROOT)
    if write:
        path.write_text(page.written(), encoding="utf-8")
    for line in page.wrong:
        print(line)
    print(f"{path.relative_to(ROOT)}: {len(page.wrong)} wrong, {time.process_time() - start:.1f} s", flush=True)
    return int(bool(page.wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="write what comes out into the page")
    arguments = parser.parse_args()
    os.environ.update(environment())
    import matplotlib.pyplot  # noqa: F401
    import torch
    import transformer_lens  # noqa: F401

    import induction_memory as im
    import induction_memory.cli.app

    for name in im.__all__:
        getattr(im, name)  # imported once, before every page gets a process of its own
    torch.set_num_threads(1)
    codes = []
    for path in [page.resolve() for page in arguments.pages] or pages():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = run_page(path, arguments.write)
            except Exception:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
