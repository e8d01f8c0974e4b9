"""The pages of the API reference, written before Sphinx reads: one for the package and one per room.

What is public is what the package and its rooms name: `induction_memory.__all__`, and `dir` of each room. Names added
to a room appear without a change here. The files are build output and not committed.
"""

import inspect
from operator import attrgetter
from pathlib import Path

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


def package_page():
    """The names that `import induction_memory as im` gives, in the order in which one needs them."""
    lines = [
        heading("induction_memory"),
        "``import induction_memory as im`` gives these names and the rooms. Each is found on first use.\n",
    ]
    for title, group in GROUPS.items():
        lines += [heading(title, "-"), *(entry(f"induction_memory.{name}", getattr(im, name)) for name in group)]
    return "\n".join(lines)


def room_page(room):
    """One room: what its docstring says, then its names."""
    module, found = names(room)
    lines = [heading(f"im.{room}"), f".. automodule:: {module.__name__}\n   :no-index:\n"]
    where = getattr(module, "_WHERE", {})
    for name in found:
        defined = where.get(name, module.__name__).partition(":")[0]
        lines.append(entry(f"{module.__name__}.{name}", getattr(module, name), defined))
    return "\n".join(lines)


def index_page():
    """The list of the pages."""
    rows = "\n".join(f"- :doc:`im.{room} <{room}>`: {about}" for room, about in ROOMS.items())
    pages = "\n   ".join(["induction_memory", *ROOMS])
    return (
        f"{heading('API')}\n:doc:`induction_memory` has the verbs and types that most need, the rooms the rest:\n\n"
        f"{rows}\n\n.. toctree::\n   :hidden:\n\n   {pages}\n"
    )


def write(app):
    """Write the pages that have changed."""
    folder = Path(app.srcdir) / "reference" / "api"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"index": index_page(), "induction_memory": package_page()} | {room: room_page(room) for room in ROOMS}
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app):
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
