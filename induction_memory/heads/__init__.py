"""Heads: roles, shared work, mediation, and identifiability across heads and runs. Names are found on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from induction_memory.heads.identification import Identification as Identification
    from induction_memory.heads.identification import identify as identify
    from induction_memory.heads.planted import Planted as Planted
    from induction_memory.heads.planted import permuted as permuted
    from induction_memory.heads.planted import plant as plant

_WHERE = {
    "Identification": "identification",
    "identify": "identification",
    "Planted": "planted",
    "permuted": "planted",
    "plant": "planted",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_WHERE)
