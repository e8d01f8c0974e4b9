"""Appendix, Figures 10 and 11: LayerNorm with everything trained, and four heads per layer."""

from collections.abc import Iterator

import numpy as np

from induction_memory.reproduction import plan
from induction_memory.reproduction.claims.claim import HALF, called, claim, later
from induction_memory.reproduction.claims.distributions import learned
from induction_memory.reproduction.records import Records
from induction_memory.theory.checks import Check, at_least, at_most, near

MEMORIES = ("W_O2", "W_K2", "W_K1_first64")


@claim(
    10,
    "marks of Figure 3's model: accuracy 0.9, half of each memory recalled; 'similar' to Figure 4's is within 0.1",
    "accuracy still rises when training ends; W_O2 is recalled better than in the simplified model, W_K2 less well",
)
def behaves_alike(records: Records) -> Iterator[Check]:
    """The loss, in-context accuracy and memory recall probes are similar to the simplified architecture."""
    run, like = records.one(plan.REALISTIC), records.one(plan.OUTPUTS["uniform"])
    yield at_least("in-context accuracy at the end", 0.9, run.accuracy())
    for name in MEMORIES:
        yield at_least(f"{called(name)} recall at the end", HALF, run.recall(name))
    ratio = learned(run, "loss_in_context") / learned(run, "loss_global")
    yield at_least("steps to learn in context / steps to learn globally", 1.0, ratio)
    lead = run.accuracy() - like.accuracy()
    yield later(near("in-context accuracy at the end, above the simplified model's", 0.0, lead, 0.1))
    for name in MEMORIES:
        lead = run.recall(name) - like.recall(name)
        yield later(near(f"{called(name)} recall, above its", 0.0, lead, 0.1))


@claim(11, "participation ratio of exact Shapley values: up to 1.5 is one head's work, from 2 on it is shared")
def heads_share(records: Records) -> Iterator[Check]:
    """only one of the first layer heads learns the previous token behavior, while the induction behavior is shared
    across different heads at the second layer.
    """

    def effective(role: str) -> float:
        return float(np.mean([run.final(f"effective_heads_{role}") for run in records.of(plan.FOUR_HEADS)]))

    yield at_most("layer 1: effective number of heads of the previous-token work", 1.5, effective("previous-token"))
    yield at_least("layer 2: effective number of heads of the induction work", 2.0, effective("induction"))
