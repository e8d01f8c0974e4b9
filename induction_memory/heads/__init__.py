"""Heads: roles, shared work, mediation, and identifiability across heads and runs."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.heads.examination import Identification as Identification
    from induction_memory.heads.examination import identify as identify
    from induction_memory.heads.planted import Planted as Planted
    from induction_memory.heads.planted import permuted as permuted
    from induction_memory.heads.planted import plant as plant

_WHERE = {
    "Identification": "examination",
    "identify": "examination",
    "Planted": "planted",
    "permuted": "planted",
    "plant": "planted",
}

__getattr__, __dir__ = lazily(__name__, _WHERE)
