"""The mathematics of associative memories: torch only, no transformer."""

from induction_memory.memory.associative import (
    at_target,
    causal,
    margin,
    masked_recall,
    rank,
    recall,
    restricted_recall,
    scores,
    signal_to_interference,
    soft_recall,
    store,
)
from induction_memory.memory.divergence import (
    kl_from_model,
    kl_from_model_on_support,
    kl_to_model,
    mass_off_support,
)

__all__ = [
    "at_target",
    "causal",
    "kl_from_model",
    "kl_from_model_on_support",
    "kl_to_model",
    "margin",
    "masked_recall",
    "mass_off_support",
    "rank",
    "recall",
    "restricted_recall",
    "scores",
    "signal_to_interference",
    "soft_recall",
    "store",
]
