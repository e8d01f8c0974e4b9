"""How far a model is from each predictor of its task, over training, and the phases that this shows.

    KL(p) = mean over positions t of sum_j p_t(j) log( p_t(j) / q_t(j) ),        q_t the model's prediction

This works for any task that offers predictors and any model that runs. On a variant of the task, the predictors are
those of the task that the model was trained on, and in addition the variant's own Bayes-optimal one.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from induction_memory.errors import InputError, require
from induction_memory.experiment.train_config import TrainConfig
from induction_memory.subject import opened_folder
from induction_memory.task.batch import Batch
from induction_memory.task.phases import Phase, phases
from induction_memory.task.predictors import distances, mixture_weights, predictions
from induction_memory.task.protocol import ask, choose
from induction_memory.task.sampler import step_rng
from induction_memory.trajectory.states import fill
from induction_memory.trajectory.trajectory import Trajectory

SEQUENCES = 128
OWN = "own "
"""Prefix of the name of a variant's own predictor."""


def predictor_distances(
    source: Any,
    *,
    steps: Any = None,
    task: Any = None,
    group: str = "all",
    variant: str | None = None,
    sequences: int = SEQUENCES,
) -> pd.DataFrame:
    """One row per step, one column per predictor, simplest first: KL(predictor || model) in nats.

    `group` names the positions (all that the task counts when not given), `variant` another distribution of the task.

    >>> import induction_memory as im
    >>> im.probes.predictor_distances("markov-1", sequences=8).loc[1500].round(3).to_dict()
    {'1-gram': 0.11, '2-gram': 0.003}
    """
    source = _opened(source)
    _, batch, predicted, where = _setting(source, task, group, variant, sequences)
    rows = {}
    for step, logits in _logits(source, steps, batch):
        rows[step] = {name: float(value) for name, value in distances(logits, predicted, where).items()}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(predicted)).rename_axis("step")


def predictor_phases(source: Any, **how: Any) -> list[Phase]:
    """The stretches of training in which one predictor is the closest; arguments as for `predictor_distances`.

    >>> import induction_memory as im
    >>> im.probes.predictor_phases("markov-1", sequences=8)
    [Phase(predictor='1-gram', first=0, last=90), Phase(predictor='2-gram', first=180, last=1500)]
    """
    return phases_of(predictor_distances(source, **how))


def phases_of(table: pd.DataFrame) -> list[Phase]:
    """The phases of a table of distances, without the variant's own predictor."""
    belief = [name for name in table if not str(name).startswith(OWN)]
    return phases(table.index.to_numpy(), {str(name): table[name].to_numpy() for name in belief})


def predictor_mixture(
    source: Any, *, steps: Any = None, task: Any = None, group: str = "all", sequences: int = SEQUENCES
) -> pd.DataFrame:
    """One row per step, one column per predictor: the weights of the mixture that is nearest to the model.

    >>> import induction_memory as im
    >>> im.probes.predictor_mixture("markov-1", steps=[1500], sequences=8).loc[1500].round(1).to_dict()
    {'1-gram': 0.1, '2-gram': 0.9}
    """
    source = _opened(source)
    _, batch, predicted, where = _setting(source, task, group, None, sequences)
    rows = {step: mixture_weights(logits, predicted, where) for step, logits in _logits(source, steps, batch)}
    return pd.DataFrame.from_dict(rows, orient="index", columns=list(predicted)).rename_axis("step")


def _opened(source: Any) -> Any:
    """A trajectory by its folder or name; anything else as it is."""
    return opened_folder(source) if isinstance(source, str | Path) else source


def _setting(
    source: Any, task: Any, group: str, variant: str | None, sequences: int
) -> tuple[Any, Batch, dict[str, Float[Tensor, "batch pos output"]], Bool[Tensor, "batch pos"]]:
    """Task, sequences, what each predictor says on them, and the positions."""
    if task is None:
        if not isinstance(source, Trajectory):
            raise InputError("task: expected the task of the sequences (a model alone does not know it), got none")
        task = source.task
    require(sequences >= 1, "sequences", "1 or more", sequences)
    seed = source.source.train.eval_seed if isinstance(source, Trajectory) else TrainConfig.eval_seed
    drawn_from = task if variant is None else choose(task, "variants", variant)
    batch = drawn_from.sample(sequences, step_rng(seed, 0))
    predicted = predictions(ask(task, "predictors"), batch.tokens, task.n_outputs)
    if variant is not None:
        last, own = list(ask(drawn_from, "predictors").items())[-1]
        predicted |= predictions({f"{OWN}{last}": own}, batch.tokens, task.n_outputs)
    where = batch.group(group)
    require(bool(where.any()), "group", "a group that has positions in the batch", repr(group))
    return task, batch, predicted, where


def _logits(source: Any, steps: Any, batch: Batch) -> Iterator[tuple[int, Float[Tensor, "batch pos output"]]]:
    """The model's logits on the batch at each step."""
    if isinstance(source, Trajectory):
        from induction_memory.model.building import build

        model = build(source.model_config)
        for step in source.resolve_all(steps if steps is None else [int(one) for one in np.atleast_1d(steps)]):
            fill(model, source.state(step))
            yield step, _run(model, batch)
        return
    require(isinstance(source, nn.Module), "source", "a trajectory or a model", type(source).__name__)
    require(steps is None, "steps", "none: this is a model, not a trajectory", steps)
    yield 0, _run(source, batch)


@torch.no_grad()
def _run(model: Any, batch: Batch) -> Float[Tensor, "batch pos output"]:
    device = next(model.parameters()).device
    return model(batch.tokens.to(device)).cpu()
