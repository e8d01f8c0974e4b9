"""Names of a package that are found on first use, so that importing the package costs nothing."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(package: str, file: str) -> tuple[dict[str, str], Callable[[str], Any], Callable[[], list[str]]]:
    """The exports of a package (name -> module, or `module:name`), with its `__getattr__` and `__dir__`.

    The names are those that its `__init__.py` imports under `if TYPE_CHECKING:`, so they are listed once, for the type
    checker and for the interpreter. Each is imported on first use.
    """
    listed = r"^    (?:from ([\w.]+) )?import ([\w.]+) as (\w+)$"
    found = re.findall(listed, Path(file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    where = {name: f"{module}:{name}" if module else whole for module, whole, name in found}

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = where[name].partition(":")
        with quiet_import():
            found = import_module(module)
        return getattr(found, attribute) if attribute else found

    return where, find, lambda: sorted(where)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the one warning that importing TransformerLens gives in a notebook without ipywidgets, and only there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield
