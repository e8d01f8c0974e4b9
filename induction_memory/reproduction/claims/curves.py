"""When a loss is learned, and how far a probe has moved: numbers read from a curve, with the error from its noise."""

import numpy as np
from jaxtyping import Float

from induction_memory.reproduction.claims.estimate import Estimate
from induction_memory.reproduction.records import Record

DROP = 0.9
"""A loss is learned when it has fallen by this share of its whole fall."""
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
