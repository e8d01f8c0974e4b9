"""Names of a package that are found on first use, so that importing the package costs nothing."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


def lazily(package: str, file: str) -> tuple[dict[str, str], Callable[[str], Any], Callable[[], list[str]]]:
    """The exports of a package, its `__getattr__` and its `__dir__`.

    The names are those that its `__init__.py` imports under `if TYPE_CHECKING:`, so they are listed once, for the type
    checker and for the interpreter. Each is imported on first use.
    """
    where = _exports(Path(file).read_text(), f"{package}.")

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with quiet_import():
            return getattr(import_module(where[name], package), name)

    return where, find, lambda: sorted(where)


def _exports(source: str, prefix: str) -> dict[str, str]:
    """Name -> module, of every line `from module import name as name`; `.submodule` within the package."""
    found = re.findall(r"^    from ([\w.]+) import \w+ as (\w+)$", source, flags=re.MULTILINE)
    return {name: re.sub(f"^{re.escape(prefix)}", ".", module) for module, name in found}


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the one warning that importing TransformerLens gives in a notebook without ipywidgets, and only there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield
