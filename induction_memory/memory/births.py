"""When something is born: the first step from which it holds to the end."""

import numpy as np
from jaxtyping import Bool, Float, Shaped
from torch import Tensor


def first_lasting(
    holds: Bool[np.ndarray, "step *rest"] | Bool[Tensor, "step *rest"], steps: Shaped[np.ndarray, " step"]
) -> Float[np.ndarray, "*rest"]:
    """First step from which `holds` is true at every later step too; nan where it is false at the last step.

    >>> first_lasting(np.array([False, True, False, True, True]), np.array([0, 10, 20, 30, 40])).item()
    30.0
    """
    stays = np.logical_and.accumulate(np.asarray(holds)[::-1], axis=0)[::-1]
    return np.where(stays[-1], np.asarray(steps, float)[stays.argmax(0)], np.nan)
