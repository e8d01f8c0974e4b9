"""Section 4, Figure 3: the induction head alone, with some matrices frozen at first."""

from collections.abc import Iterator

import numpy as np

from induction_memory.reproduction import plan
from induction_memory.reproduction.claims.claim import HALF, called, claim, later, mean_recall_at
from induction_memory.reproduction.records import Records
from induction_memory.theory.checks import Check, at_least, at_most

THAWED = 300
"""The step until which Figure 3 freezes."""


@claim(3, "recall by chance is 1/64 and 1/65; up to 0.1 is not learning")
def keys_wait(records: Records) -> Iterator[Check]:
    """training key-query matrices does not lead to any learning unless W_O^2 is learned first."""
    frozen = records.of("figure-3-freeze-output")
    for name in ("W_K1_first64", "W_K2"):
        measure = f"{called(name)} recall at step {THAWED}, W_O2 frozen until then"
        yield at_most(measure, 0.1, mean_recall_at(frozen, name, THAWED))


@claim(3, "nearly all of 65 associations, and right less than half of the time")
def output_alone(records: Records) -> Iterator[Check]:
    """W_O^2 can learn the correct associations even when trained by itself [...] While such a model has poor
    prediction accuracy.
    """
    frozen = records.of("figure-3-freeze-keys")
    measure = f"W_O2 recall at step {THAWED}, both W_K frozen until then"
    yield at_least(measure, 0.95, mean_recall_at(frozen, "W_O2", THAWED))
    accuracy = float(np.mean([run.accuracy(THAWED - 19, THAWED) for run in frozen]))
    yield at_most("in-context accuracy of the steps just before", HALF, accuracy)


@claim(3, "copying what followed the last time is always right here; 'near-perfect' is read as 0.9 after 600 steps")
def near_perfect(records: Records) -> Iterator[Check]:
    """which eventually recovers the desired induction head behavior and leads to near-perfect accuracy."""
    for name in plan.FREEZING.values():
        accuracy = float(np.mean([run.accuracy() for run in records.of(name)]))
        yield at_least(f"in-context accuracy at the end, {name}", 0.9, accuracy)


@claim(3, "a tenth is six associations of 65")
def second_before_first(records: Records) -> Iterator[Check]:
    """the second layer is learned before the first, in the sense that W_K^2 is easier to learn when W_K^1 is frozen
    compared to the reverse, yet learning them together seems beneficial.
    """

    def recall(preset: str, name: str) -> float:
        return mean_recall_at(records.of(preset), name, THAWED)

    lead = recall("figure-3-freeze-first-key", "W_K2") - recall("figure-3-freeze-second-key", "W_K1_first64")
    yield at_least(f"W_K2 recall at {THAWED} with W_K1 frozen, above W_K1's (t < 64) with W_K2 frozen", 0.1, lead)
    gain = recall("figure-3", "W_K2") - recall("figure-3-freeze-first-key", "W_K2")
    yield later(at_least(f"W_K2 recall at {THAWED} with nothing frozen, above that with W_K1 frozen", 0.1, gain))
    gain = recall("figure-3", "W_K1_first64") - recall("figure-3-freeze-second-key", "W_K1_first64")
    yield later(at_least("W_K1's (t < 64) with nothing frozen, above that with W_K2 frozen", 0.1, gain))


@claim(
    3,
    "half of the associations, for good, in every run with nothing frozen",
    "the first 64 positions of W_K1 are half recalled before W_K2 is; over all positions W_K1 never is",
)
def top_down(records: Records) -> Iterator[Check]:
    """Emergence of the induction head via top-down learning."""
    order = ("W_O2", "W_K2", "W_K1_first64")
    births = [[run.reaches(name, HALF) for name in order] for run in records.of("figure-3")]
    in_order = float(np.mean([b[0] <= b[1] <= b[2] < np.inf for b in births]))
    yield at_least("share of runs that recall half of W_O2, then of W_K2, then of W_K1 (t < 64)", 1.0, in_order)


@claim(3, "'much' is read as a fifth of all associations")
def early_positions(records: Records) -> Iterator[Check]:
    """W_K^1 fits previous token associations for early positions much faster than later positions."""
    runs = records.of("figure-3")
    if runs[0].config.task.length <= 64:  # there are no later positions
        return
    for when, step in (("step 200", 200), ("at the end", None)):
        lead = mean_recall_at(runs, "W_K1_first64", step) - mean_recall_at(runs, "W_K1", step)
        yield at_least(f"W_K1 recall of the first 64 positions above that of all, {when}", 0.2, lead)
