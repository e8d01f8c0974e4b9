"""Probes that follow from what a task offers: distance to each of its predictors, attention to each of its sources.

    kl_to_<predictor>        mean over the counted positions of KL(predictor || model): `kl_to_bayes`, `kl_to_2-gram`
    mass_on_<role><layer>    mean over the main group's queries of the attention to the keys of that role, in a layer
                             counted from 1: `mass_on_parent1`. More is not always better: it can fall while the loss
                             improves

A name is written with `_` for each space. `table(run, "predictors")` and `table(run, "sources")` measure all that the
task of the run offers; a task that offers none is left out with the reason.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.probes.activations import Activations, mean_where
from induction_memory.probes.registry import Probe, split_layer
from induction_memory.subject import Subject
from induction_memory.task.positions import sources_of
from induction_memory.task.predictors import predictions
from induction_memory.task.protocol import ask

DISTANCE, MASS = "kl_to_", "mass_on_"


def written(name: str) -> str:
    """A predictor's or role's name within that of a probe."""
    return name.replace(" ", "_")


def predicted(a: Activations) -> dict[str, Float[Tensor, "batch pos output"]]:
    """What each predictor of the task says on the batch, by its name in probes; simplest first, Bayes-optimal last."""

    def compute() -> dict[str, Tensor]:
        task = a.stack.require_task()
        found = predictions(ask(task, "predictors"), a.batch.tokens.cpu(), task.n_outputs)
        return {written(name): p.to(a.batch.tokens.device) for name, p in found.items()}

    return a.of_batch("predictions", compute)


def sought(a: Activations) -> dict[str, Bool[Tensor, "batch query key"]]:
    """The keys of each role that the task names, by its name in probes."""

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
        if crossed.isnan().any():  # perhaps from 0 * -inf
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


def of_predictors(source: Subject) -> list[Probe]:
    """One probe per predictor of the source's task; if there is none, a probe that reports the reason."""
    try:
        offered = ask(source.stack.require_task(), "predictors")
    except UnsupportedError as reason:
        return [_missing("predictors", str(reason))]
    return [_certain(f"{DISTANCE}{written(name)}") for name in offered]


def of_sources(source: Subject) -> list[Probe]:
    """One probe per role and layer; if the task names no roles, a probe that reports the reason."""
    try:
        offered = sources_of(source.stack.require_task(), source.batch)
    except UnsupportedError as reason:
        return [_missing("sources", str(reason))]
    layers = range(1, source.stack.n_layers + 1)
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
