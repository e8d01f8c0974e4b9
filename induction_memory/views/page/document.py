"""The HTML file with template, style, scripts and data, and a content security policy that allows nothing else.

The scripts are ES modules on the disk. A page opened from a file cannot load modules, so they are joined here, in the
order of their imports. Each becomes a function that returns the module's exports; imports read from its result. The
policy has the hashes of the script and of the style, so nothing else can run.
"""

import base64
import hashlib
import html
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from induction_memory.files import require_file, write_file
from induction_memory.views.attention_page import framed

FILES = resources.files("induction_memory.views.page") / "static"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w-]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)

INDUCTION = (
    "A transformer learns to copy from its context. Move the slider and watch its memories form: which token follows "
    "which, which matrix stores it, and what is lost without it."
)
ANY_TASK = (
    "A transformer in training. Move the slider and watch where its heads attend, how well it predicts, and what is "
    "lost without each of its parts."
)


@dataclass(frozen=True, eq=False)
class Page:
    """An HTML file that shows itself in a notebook and can be saved."""

    title: str
    source: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title!r}: {len(self.source) / 1e6:.1f} MB of HTML)"

    def html(self) -> str:
        """The whole page."""
        return self.source

    def save(self, path: str | Path) -> Path:
        """Write the page to an .html file."""
        path = require_file(path, [".html"])
        write_file(path, self.source)
        return path

    def _repr_html_(self) -> str:
        return framed(self.source, height=900)


def source(name: str) -> str:
    """The content of one of the page's source files."""
    return (FILES / name).read_text(encoding="utf-8")


@cache
def script(entry: str = "main") -> str:
    """All modules that `entry` needs, as one script."""
    order: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in order:
            return
        text = source(f"{name}.js")
        for _, needed in _IMPORT.findall(text):
            visit(needed)
        exports = ", ".join(exported for _, exported in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = modules.\2;", text)).strip()
        order[name] = f"modules.{name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();"

    visit(entry)
    return '(() => {\n"use strict";\nconst modules = {};\n' + "\n".join(order.values()) + "\n})();\n"


def document(title: str, blob: bytes, *, induction: bool = True) -> str:
    """The whole page for one blob of data; `induction`: its runs are of the paper's task."""
    code, style = script(), source("page.css")
    policy = (
        f"default-src 'none'; script-src {digest(code)}; style-src {digest(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": html.escape(policy),
        "TITLE": html.escape(title),
        "SUBJECT": "an induction head" if induction else "a transformer",
        "LEDE": INDUCTION if induction else ANY_TASK,
        "STYLE": style,
        "DATA": base64.b64encode(blob).decode(),
        "SCRIPT": code,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], source("page.html"))


def digest(text: str) -> str:
    """The hash with which a policy allows a script or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
