"""Heads: roles, shared work, mediation, and identifiability across heads and runs."""

from typing import TYPE_CHECKING

from induction_memory.lazy import lazily

if TYPE_CHECKING:
    from induction_memory.heads.identification import identify as identify
    from induction_memory.model.constructed import permuted as permuted
    from induction_memory.model.constructed import plant as plant

_WHERE, __getattr__, __dir__ = lazily(__name__, __file__)
