"""A user's own tasks, probes and kinds of ablation on the command line.

    INDUCTION_MEMORY_IMPORT=mine.py induction-memory probe --list

The variable holds names of modules, or paths of Python files, separated as in PATH. They are imported before the
command runs. Nothing else is imported by name: a stored run never says what to import.
"""

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from induction_memory.errors import InputError

IMPORT = "INDUCTION_MEMORY_IMPORT"


def own_modules() -> list[str]:
    """What the variable asks for."""
    return [name for name in os.environ.get(IMPORT, "").split(os.pathsep) if name]


def import_own_modules() -> None:
    """Import what the variable asks for; an InputError if that fails."""
    for name in own_modules():
        try:
            _import_file(Path(name)) if name.endswith(".py") else import_module(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"{IMPORT}: expected modules that can be imported, got {name!r}: {reason}") from error


def _import_file(path: Path) -> None:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"no file {path}")
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
