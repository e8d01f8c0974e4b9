"""Names of a package that are found on first use, so that importing the package costs nothing."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def lazily(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package; `where` says in which submodule each name lives."""

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with quiet_import():
            return getattr(import_module(f"{package}.{where[name]}"), name)

    return find, lambda: sorted(where)


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the one warning that importing TransformerLens gives in a notebook without ipywidgets, and only there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        yield
