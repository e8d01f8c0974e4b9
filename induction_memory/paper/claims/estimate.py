"""A measured number with its uncertainty.

The error of an estimate is half of its 95 % interval. Where it comes from:

    seeds       t * s / sqrt(n) for the mean of n runs. s is the spread between seeds, pooled over the five settings of
                Figure 3 (`SEED_SPREAD`, 10 degrees of freedom), which has the only repetitions of whole runs. A measure
                of a single run has n = 1. The spread of an accuracy p is proportional to sqrt(p (1 - p)), as for any
                share of independent answers.
    draws       t * s / sqrt(n) for n repetitions of the measurement, with their own spread
    sequences   at the last step: the spread over batches of fresh sequences
    pairs       at the last step: bootstrap over the associations of a memory
    steps       bootstrap over the steps of a training curve (its noise is resampled)

`slower_to_learn` and `from_extreme` read numbers from a curve, with the error from its noise.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.stats import t as student

from induction_memory.paper.records import Record
from induction_memory.paper.verdicts import Estimate

LEVEL = 0.95
SEED_SPREAD = {"accuracy": 0.0175, "mean accuracy": 0.0081, "recall": 0.0264, "mean recall": 0.0175}
"""Standard deviation between seeds in Figure 3 (measured by a test) of accuracy and recall, each at a step and as a
mean over training. For the accuracy, the unit is sqrt(p (1 - p))."""
SPREAD_FREEDOM = 10


def over_seeds(values: Sequence[float], kind: str) -> Estimate:
    """The mean over runs, with the spread between seeds of Figure 3 for this kind of number."""
    n, mean = len(values), float(np.mean(values))
    unit = math.sqrt(max(mean * (1 - mean), 0.0)) if kind == "accuracy" else 1.0
    error = _quantile(SPREAD_FREEDOM) * SEED_SPREAD[kind] * unit / math.sqrt(n)
    return Estimate(mean, error, "seeds" if n > 1 else "seeds (1 run)")


def over_draws(values: Sequence[float] | Float[np.ndarray, " draw"]) -> Estimate:
    """The mean over repetitions, with their spread; unknown for a single one."""
    n = len(values)
    error = _quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(float(np.mean(values)), error, f"{n} draws")


def pooled(values: Sequence[float], repeated: Sequence[Sequence[float]]) -> Estimate:
    """The mean of some runs, with the spread of repetitions of similar runs; unknown without repetitions."""
    freedom = sum(len(some) - 1 for some in repeated)
    if freedom == 0:
        return Estimate(float(np.mean(values)), math.nan, "")
    spread = math.sqrt(sum(float(np.var(some)) * len(some) for some in repeated) / freedom)
    return Estimate(float(np.mean(values)), _quantile(freedom) * spread / math.sqrt(len(values)), "seeds")


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


def slower_to_learn(run: Record, slow: str, fast: str) -> Estimate:
    """Steps to learn one loss divided by steps to learn another; the error resamples the noise around smooth curves."""
    rng, drawn = np.random.default_rng(0), []
    curves = [run.curve(column) for column in (slow, fast)]
    for _ in range(RESAMPLES):
        drawn.append(_again(*curves[0], rng) / _again(*curves[1], rng))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(learned(run, slow) / learned(run, fast), float(high - low) / 2, "steps")


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
