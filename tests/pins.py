"""The versions that an environment of the Makefile is made of, as a file of constraints for pip.

    .venv/bin/python tests/pins.py tested > .venv/constraints.txt

    tested    those of constraints.txt
    tl4       the same, with TransformerLens 4
    oldest    the lower bounds of pyproject.toml for what it names, and mostly constraints.txt for what these bring
    newest    none: what pip takes by itself

It runs in that environment. A torch that is installed there, such as a build for the CPU, is kept if pyproject.toml
allows it.
"""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
TL4 = {"transformer-lens": "4.3.0"}
TOO_NEW_FOR_THE_OLDEST = (
    "datasets",
    "dill",
    "fsspec",
    "huggingface_hub",
    "multiprocess",
    "sympy",
    "tokenizers",
    "transformers",
)
"""Packages whose pinned version does not go with the lower bounds."""
OLDER = {"pyparsing": "3.1.4"}
"""What the lower bounds allow, but warn about."""


def lower_bounds() -> dict[str, str]:
    """Name -> the oldest version that the package says it works with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [re.match(r"([\w-]+)>=([\w.]+)", one) for one in project["dependencies"]]
    assert all(found), "a dependency without a lower bound"
    return {one[1]: one[2] for one in found if one is not None}


def pins(kind: str, torch: str | None) -> dict[str, str]:
    """Name -> version; `torch` is the one that is installed already."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    lowest = lower_bounds()
    match kind:
        case "tested":
            chosen = tested
        case "tl4":
            chosen = tested | TL4
        case "oldest":
            chosen = {
                name: one for name, one in (tested | OLDER | lowest).items() if name not in TOO_NEW_FOR_THE_OLDEST
            }
        case "newest":
            chosen = {}
        case _:
            raise ValueError(f"expected tested, tl4, oldest or newest, got {kind!r}")
    return chosen | ({"torch": torch} if torch is not None and numbers(torch) >= numbers(lowest["torch"]) else {})


def numbers(one: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13, 0)"""
    return tuple(int(part) for part in one.partition("+")[0].split("."))


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    for name, one in pins(sys.argv[1], installed("torch")).items():
        print(f"{name}=={one}")
