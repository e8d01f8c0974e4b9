"""SGD with momentum and AdamW on named tensors; their state is named tensors too.

With gradient g, weights w, step size eta, momentum m, weight decay l:

    SGD     b <- m b + (g + l w),   w <- w - eta b
    AdamW   w <- (1 - eta l) w,   a <- b1 a + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,
            w <- w - eta (a / (1 - b1^n)) / (sqrt(v / (1 - b2^n)) + 1e-8)   at a parameter's n-th update

exactly as torch.optim.SGD and torch.optim.AdamW do it, bit for bit. The state is named "momentum/PARAMETER", or
"first/", "second/" and "count/". It starts at zero with all its entries, so it can be stored at any step. A parameter
that is left out of an update keeps its bits, and its state becomes zero again.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.experiment.run_config import RunConfig
from induction_memory.experiment.schedule import learning_rate
from induction_memory.experiment.train_config import Optimizer, TrainConfig

EPSILON = 1e-8
_PARTS: dict[Optimizer, tuple[str, ...]] = {"sgd": ("momentum",), "adamw": ("first", "second", "count")}


def zero_state(config: RunConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state before the first update of the parameters that learn."""
    state = {}
    for name in config.model.trained_names:
        parameter = config.model.parameters[name]
        for part in _PARTS[config.train.optimizer]:
            zero = torch.zeros((), dtype=torch.int64) if part == "count" else torch.zeros_like(parameters[parameter])
            state[f"{part}/{parameter}"] = zero
    return state


def reset(kind: Optimizer, state: dict[str, Tensor], names: Iterable[str]) -> None:
    """Set the state of these parameters to zero, in place."""
    for name in names:
        for part in _PARTS[kind]:
            state[f"{part}/{name}"].zero_()


def update(
    config: TrainConfig,
    step: int,
    weights: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    state: dict[str, Tensor],
) -> None:
    """One update of the parameters in `weights`, in place."""
    schedule = config.schedule, config.warmup, config.final_fraction
    rate, decay = learning_rate(step, config.steps, config.learning_rate, *schedule), config.weight_decay
    for name, value in weights.items():
        if config.optimizer == "sgd":
            sgd_update(value, gradients[name], state[f"momentum/{name}"], rate, config.momentum, decay)
        else:
            count = state[f"count/{name}"].add_(1)
            first, second = state[f"first/{name}"], state[f"second/{name}"]
            adamw_update(value, gradients[name], first, second, int(count), rate, config.betas, decay)


@torch.no_grad()
def sgd_update(
    weights: Float[Tensor, "..."],
    gradient: Float[Tensor, "..."],
    momentum_buffer: Float[Tensor, "..."],
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """One step of SGD on one parameter, in place."""
    direction = gradient.add(weights, alpha=weight_decay) if weight_decay else gradient
    momentum_buffer.mul_(momentum).add_(direction)
    weights.add_(momentum_buffer, alpha=-learning_rate)


@torch.no_grad()
def adamw_update(
    weights: Float[Tensor, "..."],
    gradient: Float[Tensor, "..."],
    first: Float[Tensor, "..."],
    second: Float[Tensor, "..."],
    count: int,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
) -> None:
    """The `count`-th step of AdamW on one parameter, counted from 1, in place."""
    weights.mul_(1 - learning_rate * weight_decay)
    first.lerp_(gradient, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    size = learning_rate / (1 - betas[0] ** count)
    spread = (second.sqrt() / math.sqrt(1 - betas[1] ** count)).add_(EPSILON)
    weights.addcdiv_(first, spread, value=-size)
