"""The pages of the API reference, written before Sphinx reads: one for the package and one per room.

What is public is what the package and its rooms name: `induction_memory.__all__`, and the names of each room. Names
added there appear without a change here. The files are build output and not committed.
"""

import inspect
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path

import induction_memory as im

GROUPS = {
    "Load and look": ("load", "Trajectory", "attention", "report", "verify", "thin", "share", "revisions"),
    "Change and measure": ("ablate", "ablation", "patch", "surgery", "probe", "identify"),
    "Train": ("train", "branch", "preset", "RunConfig", "TrainConfig", "ModelConfig", "BigramTask", "Corpus"),
    "Build and sample": ("build", "construct", "embedding", "sample", "step_rng"),
    "Reproduce": ("reproduce", "audit"),
    "Errors": ("Error", "InputError", "DamagedError", "StorageError", "DivergedError"),
}
ROOMS = {
    "probes": "What each matrix stores and each head attends to, at all steps at once.",
    "interventions": "Ablation, patching, circuits, surgery.",
    "hooks": "Interventions as TransformerLens hooks, to take away.",
    "heads": "Which head does what.",
    "memory": "Associative memories: torch only, no transformer.",
    "model": "The paper's architectures and their weights as memories.",
    "task": "Tasks and their exact predictors.",
    "training": "Training and branches.",
    "trajectory": "Trajectories on the disk.",
    "sweep": "Many runs.",
    "theory": "The paper's statements with a measured verdict.",
    "runner": "One forward and its patched variants.",
    "source": "Which weights, at which steps, on which sequences.",
}


def names(room):
    """The public names of a room: what it says it exports, or the functions and classes that it defines."""
    module = import_module(im._MODULES[room] and f"induction_memory.{im._MODULES[room]}")
    listed = getattr(module, "_WHERE", None) or getattr(module, "__all__", None)
    if listed is None:
        listed = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and (inspect.isfunction(value) or inspect.isclass(value))
            and value.__module__ == module.__name__
        ]
    return module, list(listed)


def entry(path, value, where=None):
    """The directive that documents one public name; `where` is the module that defines it, for data."""
    if inspect.isclass(value):
        members = "" if issubclass(value, Exception) else "\n   :members:"
        return f".. autoclass:: {path}{members}\n"
    if callable(value):
        return f".. autofunction:: {path}\n"
    listed = "".join(f"   ``{key}``\n      {meaning}\n" for key, meaning in value.items())
    return f".. autodata:: {where or path.rpartition('.')[0]}.{path.rpartition('.')[2]}\n   :no-value:\n\n{listed}"


def heading(text, line="="):
    return f"{text}\n{line * len(text)}\n"


def package_page():
    """The names that `import induction_memory as im` gives, in the order in which one needs them."""
    grouped = [name for group in GROUPS.values() for name in group]
    groups = GROUPS | {"More": tuple(name for name in im._NAMES if name not in grouped)}
    lines = [
        heading("induction_memory"),
        "``import induction_memory as im`` gives these names. Each is found on first use.\n",
    ]
    for title, group in groups.items():
        present = [name for name in group if name in im._NAMES]
        if present:
            lines += [heading(title, "-"), *(entry(f"induction_memory.{name}", getattr(im, name)) for name in present)]
    return "\n".join(lines)


def room_page(room):
    """One room: what its docstring says, then its names, without those that the package page has."""
    module, found = names(room)
    own = [name for name in found if name not in im._NAMES]
    also = [name for name in found if name in im._NAMES]
    lines = [heading(f"im.{room}"), f".. automodule:: {module.__name__}\n   :no-index:\n"]
    if also:
        links = ", ".join(f":py:obj:`im.{name} <induction_memory.{name}>`" for name in also)
        lines.append(f"Also here, and explained on the page of the package: {links}.\n")
    where = getattr(module, "_WHERE", {})
    for name in own:
        defined = resolve_name(where[name], module.__name__) if name in where else None
        lines.append(entry(f"{module.__name__}.{name}", getattr(module, name), defined))
    return "\n".join(lines)


def index_page():
    """The list of the pages."""
    rows = "\n".join(f"- :doc:`im.{room} <{room}>`: {about}" for room, about in ROOMS.items())
    pages = "\n   ".join(["induction_memory", *ROOMS])
    return (
        f"{heading('API')}\n:doc:`induction_memory` has the names that most people need. The rooms have the others:\n\n"
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
