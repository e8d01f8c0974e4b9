"""Appendix, Figures 7 to 9: the structure of the memories, and the effect of dimension."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from induction_memory.paper import plan
from induction_memory.paper.claims.claim import HALF, claim, later, ours
from induction_memory.paper.claims.estimate import final, over_draws, pooled
from induction_memory.paper.records import Record, Records, tuned_runs
from induction_memory.paper.theory.first_step_recall import DIMENSIONS, repeated
from induction_memory.paper.verdicts import Estimate, Measurement, at_least, at_most

FEW = 10
"""The number of steps for "a few iterations"."""


@claim(
    7,
    "'dominate' is read as right scores twice the size of the others; 'related' and 'particularly' as rank "
    "correlations of a half; 'roughly uniform' as a relative spread of at most half of W_K2's",
)
def diagonals(records: Records) -> Iterator[Measurement]:
    """diagonal elements dominate in the plots [...] some of the diagonal elements are weaker than others,
    particularly for late positions in W_K^1, and for some of the trigger tokens in W_K^2, while the diagonal for
    W_O^2 seems to be roughly uniform [...] The association patterns found in W_K^2 then seem related to frequencies
    of appearance of triggers.
    """
    run = records.one(plan.OUTPUTS["uniform"])
    for name in ("W_K1", "W_K2", "W_O2"):
        yield at_least(f"{name}: mean of the right scores / rms of the others", 2.0, final(run, f"{name}_sir"))
    measure = "W_K2: rank correlation of its diagonal with the tokens' frequency"
    yield at_least(measure, HALF, final(run, "W_K2_diagonal_frequency"))
    position = final(run, "W_K1_diagonal_position")
    yield at_most("W_K1: rank correlation of its diagonal with the position", -HALF, position)
    share = final(run, "W_O2_diagonal_spread") / final(run, "W_K2_diagonal_spread")
    yield at_most("W_O2: spread of its diagonal over its mean, as a share of W_K2's", HALF, share)


@claim(
    8,
    "'faster' is a mean recall over 100 steps that does not fall from one d to the next (with tuned step sizes, by at "
    "most 0.01, because their grid is coarse); 'a few' is read as ten steps, 'sufficient' as nine tenths recalled; "
    "'further' as a tenth more",
)
def higher_dimension(records: Records) -> Iterator[Measurement]:
    """higher dimension leads to faster learning of the memory, in particular d = 128 seems sufficient for fast
    learning after just a few iterations with a tuned learning rate. If the learning rate isn't tuned, we notice that
    there is a further slowdown for low dimension.
    """

    def mean(run: Record) -> float:
        return run.mean_recall("W_O2")

    def fixed() -> list[Estimate]:
        return [_over_sizes(records, records.of(f"figure-8-d{d}"), mean) for d in plan.DIMENSIONS]

    def tuned() -> list[Estimate]:
        return [_over_sizes(records, tuned_runs(records, d), mean) for d in plan.DIMENSIONS]

    def least_gain(means: list[Estimate]) -> Estimate:
        return min((b - a for a, b in pairwise(means)), key=lambda gain: gain.value)

    yield at_least("least gain in mean recall from one d to the next, one step size", 0.0, least_gain(fixed()))
    yield at_least("least gain in mean recall from one d to the next, tuned", -0.01, least_gain(tuned()))
    few = _over_sizes(records, tuned_runs(records, 128), lambda run: run.recall("W_O2", FEW))
    yield at_least(f"recall at d = 128 after {FEW} steps, tuned", 0.9, few)
    low, high = plan.DIMENSIONS[0], plan.DIMENSIONS[-1]
    lacking = [means[-1] - means[0] for means in (fixed(), tuned())]
    measure = f"what d = {low} lacks of d = {high}: with one step size above tuned"
    yield later(at_least(measure, 0.1, lacking[0] - lacking[1]))
    twice = _over_sizes(records, tuned_runs(records, 128), lambda run: run.recall("W_O2", 2 * FEW))
    yield ours(later(at_least(f"recall at d = 128 after {2 * FEW} steps, tuned", 0.9, twice)))


def _over_sizes(records: Records, runs: list[Record], of: Callable[[Record], float]) -> Estimate:
    """The mean over runs, with the spread between the seeds of Figure 8's repeated step sizes."""
    repeated_sizes = [records.of(name) for name in plan.DIMENSION if f"{name}-seed-1" in records]
    return pooled([of(run) for run in runs], [[of(run) for run in some] for some in repeated_sizes])


@claim(
    9,
    "'a handful' is read as eight batches, 'tens of thousands of tokens'; 'signal' as nine tenths of the associations, "
    "which d = 16 does not give even from 128 batches (seven tenths at most); 'easier': recall falls by at most a "
    "tenth from one d to the next",
)
def one_step_suffices(records: Records) -> Iterator[Measurement]:
    """this simple one-step model is already able to extract relevant signal from the noisy average attention, after
    a handful of batches of data [...] and that this gets easier as the dimension increases.
    """
    draws = repeated()
    yield at_least(
        "R_1 at d = 1024 after 8 batches (65,536 tokens)", 0.9, over_draws(draws[:, DIMENSIONS.index(1024), 3])
    )
    few = over_draws(draws[:, DIMENSIONS.index(16), -1])
    yield ours(at_most("R_1 at d = 16 after 128 batches: too few dimensions", 0.7, few))
    steps = [-np.diff(draws, axis=axis).reshape(len(draws), -1) for axis in (1, 2)]
    falls = np.concatenate(steps, axis=1)
    worst = over_draws(falls[:, falls.mean(0).argmax()])
    measure = "largest fall of R_1 from one dimension or number of batches to the next"
    yield later(at_most(measure, 0.1, worst))
