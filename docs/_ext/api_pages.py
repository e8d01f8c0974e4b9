"""The pages of the API reference, written before Sphinx reads: tables of names for the package and each room, and one
page per name.

What is public is what the package and its rooms name: `induction_memory.__all__`, and `dir` of each room. Names added
to a room appear without a change here. The files are build output and not committed.
"""

import inspect
import re
from operator import attrgetter
from pathlib import Path

from docstrings import rest
from sphinx.pycode import ModuleAnalyzer

import induction_memory as im

GROUPS = {
    "Load and look": (
        "load",
        "Trajectory",
        "attention",
        "memory_map",
        "why",
        "report",
        "verify",
        "thin",
        "share",
        "revisions",
    ),
    "Change and measure": ("measure", "ablate", "patch", "surgery"),
    "Train": ("train", "branch", "ModelConfig", "BigramTask"),
    "Build and sample": ("build", "construct", "sample"),
}
ROOMS = {
    "probes": "What each matrix stores and each head attends to, at all steps at once.",
    "interventions": "Ablation, patching, circuits, surgery.",
    "hooks": "Interventions as TransformerLens hooks, to take away; recall through hooks.",
    "heads": "Which head does what.",
    "memory": "Associative memories: torch only, no transformer.",
    "model": "The paper's architectures and their weights as memories.",
    "task": "Tasks and their exact predictors.",
    "experiment": "A task, a model and its training as one configuration; presets.",
    "sweep": "Many runs.",
    "figures": "Pictures of runs.",
    "paper": "The paper's figures and claims.",
    "paper.theory": "The paper's statements with a measured verdict.",
    "paper.claims": "The sentences of the paper, each with its measurement.",
    "runner": "One forward and its patched variants.",
    "source": "Which weights, at which steps, on which sequences.",
    "errors": "The types of errors.",
}


def names(room):
    """A room and its public names, without the rooms within it."""
    module = attrgetter(room)(im)
    return module, [name for name in dir(module) if not inspect.ismodule(getattr(module, name))]


def entry(path, value, where=None):
    """The directive that documents one public name; `where` is the module that defines it, for data."""
    if inspect.isclass(value):
        members = "" if issubclass(value, Exception) else "\n   :members:"
        return f".. autoclass:: {path}{members}\n"
    if callable(value):
        return f".. autofunction:: {path}\n"
    about = {key: getattr(meaning, "says", meaning) for key, meaning in value.items()}
    listed = "".join(f"   ``{key}``\n      {meaning}\n" for key, meaning in about.items())
    return f".. autodata:: {where or path.rpartition('.')[0]}.{path.rpartition('.')[2]}\n   :no-value:\n\n{listed}"


def heading(text, line="="):
    return f"{text}\n{line * len(text)}\n"


def summary(value, where, name):
    """The first sentence of a docstring; that of a constant stands below it in the source."""
    if isinstance(value, dict):
        found = ModuleAnalyzer.for_module(where).find_attr_docs()
        text = "\n".join(found.get(("", name), [f"{len(value)} entries by name, listed on its page."]))
    else:
        text = inspect.getdoc(value) or ""
    first = " ".join(text.strip().partition("\n\n")[0].split())
    return rest(re.split(r"(?<=\S\.)\s", first, maxsplit=1)[0])


def table(folder, rows):
    """One row per name, with a link to its page in `folder`."""
    cells = "".join(f"   * - :doc:`{name} <{folder}/{name}>`\n     - {about}\n" for name, about in rows)
    return f".. list-table::\n   :widths: auto\n\n{cells}"


def contents(folder, names):
    """The pages of the names, for the sidebar."""
    return ".. toctree::\n   :hidden:\n\n" + "".join(f"   {name} <{folder}/{name}>\n" for name in names)


def package_pages():
    """The names that `import induction_memory as im` gives, in the order in which one needs them."""
    pages = {}
    lines = [
        heading("induction_memory"),
        "``import induction_memory as im`` gives these names and the rooms. Each is found on first use.\n",
    ]
    for title, group in GROUPS.items():
        found = {name: getattr(im, name) for name in group}
        rows = [(name, summary(value, im.__name__, name)) for name, value in found.items()]
        lines += [heading(title, "-"), table("induction_memory", rows)]
        for name, value in found.items():
            pages[f"induction_memory/{name}"] = f"{heading(f'im.{name}')}\n{entry(f'induction_memory.{name}', value)}"
    lines.append(contents("induction_memory", [name for group in GROUPS.values() for name in group]))
    return {"induction_memory": "\n".join(lines)} | pages


def room_pages(room):
    """One room: what its docstring says and a table of its names, and the page of each name."""
    module, found = names(room)
    pages, rows = {}, []
    where = getattr(module, "_WHERE", {})
    for name in found:
        defined, value = where.get(name, module.__name__).partition(":")[0], getattr(module, name)
        rows.append((name, summary(value, defined, name)))
        text = entry(f"{module.__name__}.{name}", value, defined)
        pages[f"{room}/{name}"] = f"{heading(f'im.{room}.{name}')}\n{text}"
    about = f".. automodule:: {module.__name__}\n   :no-index:\n"
    return {room: "\n".join([heading(f"im.{room}"), about, table(room, rows), contents(room, found)])} | pages


def index_page():
    """The list of the pages."""
    rows = "\n".join(f"- :doc:`im.{room} <{room}>`: {about}" for room, about in ROOMS.items())
    pages = "\n   ".join(["induction_memory", *ROOMS])
    return (
        f"{heading('API')}\n:doc:`induction_memory` has the verbs and types that most need, the rooms the rest:\n\n"
        f"{rows}\n\n.. toctree::\n   :hidden:\n\n   {pages}\n"
    )


def write(app):
    """Write the pages that have changed, and remove those of names that are gone."""
    folder = Path(app.srcdir) / "reference" / "api"
    pages = {"index": index_page()} | package_pages()
    for room in ROOMS:
        pages |= room_pages(room)
    for path in folder.rglob("*.rst"):
        if path.relative_to(folder).with_suffix("").as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
