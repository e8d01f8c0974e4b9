"""Appendix, Figures 10 and 11: LayerNorm with everything trained, and four heads per layer."""

from collections.abc import Iterator

from induction_memory.paper import plan
from induction_memory.paper.claims.claim import HALF, called, claim, later, ours
from induction_memory.paper.claims.estimate import accuracy, final, over_draws, recall, slower_to_learn
from induction_memory.paper.records import Records
from induction_memory.paper.theory.learning_conditions import frequency_ratios
from induction_memory.paper.verdicts import Measurement, at_least, at_most, near

MEMORIES = ("W_O2", "W_K2", "W_K1_first64")
STEP_SIZES = (0.25, 1.0, 4.0, 16.0)
"""Step sizes of the descent that weighs tokens, in factors of four."""


@claim(
    10,
    "the marks of Figure 3's model: accuracy 0.9, half of each memory recalled; 'similar' to Figure 4's is read as "
    "within 0.1, six associations of 65. The error of a difference of recalls is 0.104 with one run of each model: "
    "those rows can fail, but cannot hold",
)
def behaves_alike(records: Records) -> Iterator[Measurement]:
    """The loss, in-context accuracy and memory recall probes are similar to the simplified architecture."""
    run, like = records.one(plan.REALISTIC), records.one(plan.OUTPUTS["uniform"])
    yield at_least("in-context accuracy at the end", 0.9, accuracy([run]))
    for name in MEMORIES:
        yield at_least(f"{called(name)} recall at the end", HALF, recall([run], name))
    ratio = slower_to_learn(run, "loss_in_context", "loss_global")
    yield at_least("steps to learn in context / steps to learn globally", 1.0, ratio)
    lead = accuracy([run]) - accuracy([like])
    yield later(near("in-context accuracy at the end, above the simplified model's", 0.0, lead, 0.1))
    for name in MEMORIES:
        lead = recall([run], name) - recall([like], name)
        yield later(near(f"{called(name)} recall at the end, above the simplified model's", 0.0, lead, 0.1))


@claim(
    10,
    "gradient descent on a map of 24 tokens of frequency 1/k, with and without normalisation of W w_E(k), from the "
    "same start to the same loss of 0.1. The weight of the most frequent quarter over that of the rarest is compared: "
    "the ratio with LayerNorm, divided by the ratio without, is at most 1. 'In the final memory' is read as the scores "
    "in W. The sentence argues from a gradient that is orthogonal to W x, so it is asked of small steps. The rows "
    "about larger steps, and about the scores that reach the logits, are ours (docs/theory.md)",
)
def weighs_alike(records: Records) -> Iterator[Measurement]:
    """encouraging frequent and infrequent tokens to be weighted similarly in the final memory"""
    del records
    for kind, where in (("stored", "in W"), ("read", "in what the logits read")):
        for eta in STEP_SIZES:
            measure = f"frequent over rare tokens {where}, with LayerNorm over without, step size {eta:g}"
            row = later(at_most(measure, 1.0, over_draws(frequency_ratios(eta)[kind].to_numpy())))
            yield row if kind == "stored" and eta == STEP_SIZES[0] else ours(row)


@claim(
    11,
    "effective number of heads by the participation ratio of exact Shapley values; 'mostly one' is read as at most 1.5 "
    "(half-way to two), 'distributed' as at least 2; docs/heads.md has five seeds",
)
def heads_share(records: Records) -> Iterator[Measurement]:
    """only one of the first layer heads learns the previous token behavior, while the induction behavior is shared
    across different heads at the second layer.
    """
    run = records.one(plan.FOUR_HEADS)
    one, several = (final(run, f"effective_heads_{role}") for role in ("previous-token", "induction"))
    yield at_most("layer 1: effective number of heads of the previous-token work", 1.5, one)
    yield at_least("layer 2: effective number of heads of the induction work", 2.0, several)
