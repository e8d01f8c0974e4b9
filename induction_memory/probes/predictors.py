"""The distance of a model to each predictor of its task over training, and the phases of training.

    KL(p) = mean over positions t of sum_j p_t(j) log( p_t(j) / q_t(j) ),        q_t the model's prediction

This works for any task with predictors. On a variant of the task, the predictors are those of the training task, and
the variant's Bayes-optimal one.

Probes that depend on the task: distance to each of its predictors, attention to each of its sources.

    kl_to_<predictor>        mean over the counted positions of KL(predictor || model): `kl_to_bayes`, `kl_to_2-gram`
    mass_on_<role><layer>    mean over the main group's queries of the attention to the keys of that role, in a layer
                             counted from 1: `mass_on_parent1`. It can fall while the loss improves

Spaces in names become `_`. `table(run, "predictors")` and `table(run, "sources")` measure all that the run's task
offers; if it offers none, the table says why.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.errors import UnsupportedError, require
from induction_memory.model.associations import required
from induction_memory.probes.activations import Activations, mean_where
from induction_memory.probes.registry import Probe, split_layer
from induction_memory.source.measuring import over_steps
from induction_memory.source.sources import At, Selection, select
from induction_memory.task.batch import Batch
from induction_memory.task.ideals import sources_of
from induction_memory.task.predictors import Phase, distances, mixture_weights, phases, predictions
from induction_memory.task.protocol import ask, choose
from induction_memory.task.sampler import step_rng
from induction_memory.terminal import Progress
from induction_memory.trajectory.search import Steps

SEQUENCES = 128
OWN = "own "
"""Prefix of the name of a variant's predictor."""


def predictor_distances(
    source: Any,
    *,
    step: "Steps" = "all",
    task: Any = None,
    group: str = "all",
    variant: str | None = None,
    sequences: int = SEQUENCES,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """One row per step, one column per predictor, simplest first: KL(predictor || model) in nats.

    `group` names the positions (by default all counted ones), `variant` another distribution of the task.

    >>> import induction_memory as im
    >>> im.probes.predictor_distances("markov-1", sequences=8).loc[1500].round(3).to_dict()
    {'1-gram': 0.11, '2-gram': 0.003}
    """
    return _by_step(source, step, task, group, variant, sequences, progress, distances)


def predictor_phases(source: Any, **how: Any) -> list[Phase]:
    """The phases of training, in each of which one predictor is the closest; arguments as in `predictor_distances`.

    >>> import induction_memory as im
    >>> im.probes.predictor_phases("markov-1", sequences=8)
    [Phase(predictor='1-gram', first=0, last=90), Phase(predictor='2-gram', first=180, last=1500)]
    """
    return phases_of(predictor_distances(source, **how))


def phases_of(table: pd.DataFrame) -> list[Phase]:
    """The phases of a table of distances, without the variant's predictor."""
    belief = [name for name in table if not str(name).startswith(OWN)]
    return phases(table.index.to_numpy(), {str(name): table[name].to_numpy() for name in belief})


def predictor_mixture(
    source: Any,
    *,
    step: "Steps" = "all",
    task: Any = None,
    group: str = "all",
    sequences: int = SEQUENCES,
    progress: "Progress" = None,
) -> pd.DataFrame:
    """One row per step, one column per predictor: the weights of the mixture nearest to the model.

    >>> import induction_memory as im
    >>> im.probes.predictor_mixture("markov-1", step=1500, sequences=8).loc[1500].round(1).to_dict()
    {'1-gram': 0.1, '2-gram': 0.9}
    """
    return _by_step(source, step, task, group, None, sequences, progress, mixture_weights)


def _by_step(
    source: Any,
    step: Steps,
    task: Any,
    group: str,
    variant: str | None,
    sequences: int,
    progress: Progress,
    compare: Callable[..., Mapping[str, Any]],
) -> pd.DataFrame:
    """`compare`(the model's logits, each predictor's probabilities) at each step."""
    chosen = select(source, step=step, task=task, sequences=sequences, progress=progress)
    task = chosen.require_task()
    drawn_from = task if variant is None else choose(task, "variants", variant)
    batch = drawn_from.sample(sequences, step_rng(chosen.eval_seed, 0))
    predicted = predictions(ask(task, "predictors"), batch.tokens, task.n_outputs)
    if variant is not None:
        last, own = list(ask(drawn_from, "predictors").items())[-1]
        predicted |= predictions({f"{OWN}{last}": own}, batch.tokens, task.n_outputs)
    where = batch.group(group)
    require(bool(where.any()), "group", "a group that has positions in the batch", repr(group))

    def measure(at: At) -> dict[str, pd.DataFrame]:
        logits = _logits(at, batch)
        row = {name: float(value) for name, value in compare(logits, predicted, where).items()}
        return {"table": pd.DataFrame([{"step": at.step, **row}])}

    return pd.DataFrame(over_steps(chosen, measure)["table"].set_index("step"), columns=list(predicted))


@torch.no_grad()
def _logits(at: At, batch: Batch) -> Float[Tensor, "batch pos output"]:
    if at.loaded is None:
        return at.runner.record(batch.tokens).logits
    return at.loaded(batch.tokens.to(next(at.loaded.parameters()).device)).cpu()


DISTANCE, MASS = "kl_to_", "mass_on_"


def written(name: str) -> str:
    """A predictor's or role's name in the form used in names of probes."""
    return name.replace(" ", "_")


def predicted(a: Activations) -> dict[str, Float[Tensor, "batch pos output"]]:
    """Each predictor's prediction on the batch, by its name in probes; simplest first, Bayes-optimal last."""

    def compute() -> dict[str, Tensor]:
        task = a.stack.require_task()
        found = predictions(ask(task, "predictors"), a.batch.tokens.cpu(), task.n_outputs)
        return {written(name): p.to(a.batch.tokens.device) for name, p in found.items()}

    return a.of_batch("predictions", compute)


def sought(a: Activations) -> dict[str, Bool[Tensor, "batch query key"]]:
    """The keys of each of the task's roles, by the role's name in probes."""

    def compute() -> dict[str, Tensor]:
        found = sources_of(a.stack.require_task(), a.batch)
        return {written(role): keys for role, keys in found.items()}

    return a.of_batch("sources", compute)


def divergence(a: Activations, name: str, p: Float[Tensor, "#batch #pos output"]) -> Float[Tensor, "batch pos"]:
    """KL(p || model) at each position, in nats, for predictions p that are the same at every step.

    KL(p || q) = sum_j p log p - sum_j p log q, with 0 log 0 = 0. Only the second sum depends on the model.
    """
    own = a.of_batch(f"sum of p log p, {name}", lambda: torch.xlogy(p, p).sum(-1))

    def compute() -> Tensor:
        crossed = torch.linalg.vecdot(p, a.log_q)
        if crossed.isnan().any():  # from 0 * -inf
            crossed = torch.where(p == 0, 0.0, p * a.log_q).sum(-1)
        return own - crossed

    return a.once(f"kl to {name}", compute)


def distance(predictor: str, a: Activations) -> Float[Tensor, ""]:
    """KL(predictor || model) in nats."""
    p = _one(predicted(a), predictor, "predictor", a)
    return divergence(a, predictor, p)[a.batch.counted].mean()


def mass(role: str, layer: int, a: Activations) -> Float[Tensor, " head"]:
    """Attention to the keys of a role, as a mean over the main group's queries that have such a key."""
    keys = _one(sought(a), role, "source", a)

    def asked() -> Bool[Tensor, "batch query"]:
        some = keys.any(-1)
        return some & a.batch.group() if bool((some & a.batch.group()).any()) else some

    queries = a.of_batch(f"queries of {role}", asked)
    if not queries.any():
        raise UnsupportedError(f"needs queries with keys of the role {role}, the batch has none")
    return mean_where(a.mass(layer, role, keys), queries)


def named(name: str) -> Probe | None:
    """The probe of this name, for any task."""
    if name.startswith(DISTANCE) and len(name) > len(DISTANCE):
        predictor = name.removeprefix(DISTANCE)
        about = f"mean over counted positions of KL({predictor} || model)"
        return Probe(name, about, partial(distance, predictor), "activations", (), "predictors")
    role, layer = split_layer(name.removeprefix(MASS))
    if name.startswith(MASS) and role and layer:
        about = f"layer {layer}: mean attention to the keys of the role {role}"
        return Probe(name, about, partial(mass, role, layer), "activations", (layer,), "sources")
    return None


def of_predictors(source: Selection) -> list[Probe]:
    """One probe per predictor of the source's task; if there is none, a probe that reports the reason."""
    try:
        offered = ask(required(source.task), "predictors")
    except UnsupportedError as reason:
        return [_missing("predictors", str(reason))]
    return [_certain(f"{DISTANCE}{written(name)}") for name in offered]


def of_sources(source: Selection) -> list[Probe]:
    """One probe per role and layer; if the task names no roles, a probe that reports the reason."""
    try:
        offered = sources_of(required(source.task), source.batch)
    except UnsupportedError as reason:
        return [_missing("sources", str(reason))]
    layers = range(1, source.at().stack.n_layers + 1)
    return [_certain(f"{MASS}{written(role)}{layer}") for role in offered for layer in layers]


def _one(offered: dict[str, Tensor], name: str, what: str, a: Activations) -> Tensor:
    if name not in offered:
        task = a.stack.require_task().name
        raise UnsupportedError(f"needs the {what} {name}, the task {task!r} offers {', '.join(offered)}")
    return offered[name]


def _missing(family: str, reason: str) -> Probe:
    def unsupported(_: object) -> Tensor:
        raise UnsupportedError(reason)

    return Probe(family, reason, unsupported, "activations", (), family)


def _certain(name: str) -> Probe:
    found = named(name)
    assert found is not None
    return found
