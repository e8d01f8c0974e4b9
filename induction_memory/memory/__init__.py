"""The mathematics of associative memories: torch only, no transformer."""

from induction_memory.memory.association import Association, causal, matching, store
from induction_memory.memory.edits import alignment, explained, project, set_scores, truncate
from induction_memory.memory.recall import (
    first_lasting,
    hits,
    kl,
    margin,
    rank,
    recall,
    signal_to_interference,
    soft_recall,
)

__all__ = [
    "Association",
    "alignment",
    "causal",
    "explained",
    "first_lasting",
    "hits",
    "kl",
    "margin",
    "matching",
    "project",
    "rank",
    "recall",
    "set_scores",
    "signal_to_interference",
    "soft_recall",
    "store",
    "truncate",
]


def __dir__() -> list[str]:
    return __all__
