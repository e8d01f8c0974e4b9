"""A measured number with its uncertainty.

The error of an estimate is half of its 95 % interval. Where it comes from:

    seeds       c * s / sqrt(n) for the mean of n runs, n = 1 for a single one. s is the spread between seeds: the root
                of the median, over settings that were repeated, of the variance between their seeds, so that one
                setting cannot decide it. The variance of a setting is the mean over its measures. The median of
                chi-squares is below their mean: s is corrected for that, and c is the quantile of a normal number over
                such an s. Settings: the five of Figure 3 (`SEED_SPREAD`), or the repeated step sizes of Figure 8 for
                its own claims. The spread of an accuracy p goes with sqrt(p (1 - p)), as that of any share of
                independent answers does.
    draws       t * s / sqrt(n) for n repetitions of the measurement itself, with their own spread
    sequences   at the last step: the spread over batches of fresh sequences
    pairs       at the last step: bootstrap over the associations of a memory
    steps       bootstrap over the steps of a training curve (its noise is resampled)

`slower_to_learn` and `from_extreme` read numbers from a curve, with the error from its noise.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.stats import chi2
from scipy.stats import t as student

from induction_memory.paper.records import Record
from induction_memory.paper.verdicts import Estimate

LEVEL = 0.95
SEED_SPREAD = {"accuracy": 0.0201, "mean accuracy": 0.0045, "recall": 0.0315, "mean recall": 0.0188}
"""Spread between seeds in Figure 3 (measured by a test) of an accuracy and of a recall, each at a step and
as a mean over training. That of the accuracy is in units of sqrt(p (1 - p))."""
SETTINGS, FREEDOM = 5, 2
"""Repeated settings of Figure 3, and degrees of freedom of each."""


def over_seeds(values: Sequence[float], kind: str) -> Estimate:
    """The mean over runs, with the spread between seeds of Figure 3 for this kind of number."""
    n, mean = len(values), float(np.mean(values))
    unit = math.sqrt(max(mean * (1 - mean), 0.0)) if kind == "accuracy" else 1.0
    error = _quantile_of_median(SETTINGS, FREEDOM) * SEED_SPREAD[kind] * unit / math.sqrt(n)
    return Estimate(mean, error, "seeds" if n > 1 else "seeds (1 run)")


def over_draws(values: Sequence[float] | Float[np.ndarray, " draw"]) -> Estimate:
    """The mean over repetitions, with their spread; unknown for a single one."""
    n = len(values)
    error = _quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(float(np.mean(values)), error, f"{n} draws")


def spread(variances: Sequence[float], freedom: int) -> float:
    """The spread that the median of some settings' variances gives, each with that many degrees of freedom."""
    return math.sqrt(float(np.median(variances)) / (chi2.median(freedom) / freedom))


def pooled(values: Sequence[float], repeated: Sequence[Sequence[float]]) -> Estimate:
    """The mean of some runs, with the spread between the repetitions of similar settings; unknown if there are none."""
    repeated = [some for some in repeated if len(some) > 1]
    if not repeated:
        return Estimate(float(np.mean(values)), math.nan, "")
    freedom = min(len(some) for some in repeated) - 1
    error = spread([float(np.var(some, ddof=1)) for some in repeated], freedom) / math.sqrt(len(values))
    return Estimate(float(np.mean(values)), _quantile_of_median(len(repeated), freedom) * error, "seeds")


def accuracy(runs: Sequence[Record], first: int | None = None, last: int | None = None) -> Estimate:
    """In-context accuracy of the batches of some steps, of the last twenty by default."""
    return over_seeds([run.accuracy(first, last) for run in runs], "accuracy")


def mean_accuracy(runs: Sequence[Record]) -> Estimate:
    """In-context accuracy, mean over training."""
    return over_seeds([float(run.curve("accuracy_in_context")[1].mean()) for run in runs], "mean accuracy")


def recall(runs: Sequence[Record], name: str, step: int | None = None) -> Estimate:
    """A recall at a step, the last by default."""
    return over_seeds([run.recall(name, step) for run in runs], "recall")


def mean_recall(runs: Sequence[Record], name: str, until: int | None = None) -> Estimate:
    """A recall, mean over training or until a step."""
    return over_seeds([run.mean_recall(name, until) for run in runs], "mean recall")


def final(run: Record, name: str) -> Estimate:
    """A number of the last step, with its measured error."""
    error, over = run.final_error(name)
    return Estimate(run.final(name), _quantile(math.inf) * error, over)


@cache
def _quantile_of_median(settings: int, freedom: int) -> float:
    """The quantile of |x| / s for a normal x and a spread s from that many settings of normal numbers."""
    rng = np.random.default_rng(0)
    variances = np.median(rng.chisquare(freedom, (100_000, settings)), axis=1) / chi2.median(freedom)
    return float(np.quantile(np.abs(rng.standard_normal(100_000)) / np.sqrt(variances), LEVEL))


def _quantile(freedom: float | int) -> float:
    return float(student.ppf((1 + LEVEL) / 2, freedom))


DROP = 0.9
"""A loss is learned after this share of its whole fall."""
WINDOW = 5
RESAMPLES = 200


def learned(run: Record, column: str) -> float:
    """First step at which a loss has made nine tenths of its fall from the first value to the least, at least 1."""
    steps, losses = run.curve(column)
    return fallen(steps, _smooth(losses))


def fallen(steps: np.ndarray, values: np.ndarray) -> float:
    """First step at which a curve has made nine tenths of its fall, at least 1."""
    return max(float(steps[np.argmax(values <= values[0] - DROP * (values[0] - values.min()))]), 1.0)


def slower_to_learn(run: Record, slow: str, fast: str, other: Record | None = None) -> Estimate:
    """Steps to learn one loss divided by steps to learn another, of the same run unless there is an `other`.

    The error resamples the noise around smooth curves.
    """
    other = run if other is None else other
    rng, drawn = np.random.default_rng(0), []
    curves = [run.curve(slow), other.curve(fast)]
    for _ in range(RESAMPLES):
        drawn.append(_again(*curves[0], rng) / _again(*curves[1], rng))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(learned(run, slow) / learned(other, fast), float(high - low) / 2, "steps")


def from_extreme(values: Float[np.ndarray, " step"], *, ratio: bool = False) -> Estimate:
    """How far the last value is below the maximum or, as a ratio, above the minimum.

    The error is twice the spread of the last five values.
    """
    noise = 2 * float(np.std(values[-WINDOW:], ddof=1))
    if ratio:
        return Estimate(float(values[-1] / values.min()), noise / float(values.min()), "steps")
    return Estimate(float(values.max() - values[-1]), noise, "steps")


def _again(steps: np.ndarray, losses: np.ndarray, rng: np.random.Generator) -> float:
    smooth = _smooth(losses)
    return fallen(steps, _smooth(smooth + rng.choice(losses - smooth, size=len(losses))))


def _smooth(losses: np.ndarray) -> np.ndarray:
    return np.convolve(np.pad(losses, WINDOW // 2, mode="edge"), np.full(WINDOW, 1 / WINDOW), "valid")
