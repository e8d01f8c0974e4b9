"""All probes by name: the package's families, and what users have registered."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from induction_memory.errors import InputError, require
from induction_memory.probes import (
    attention,
    attribution,
    composition,
    memory_recall,
    prediction,
    predictors,
    weight_size,
)
from induction_memory.probes.registry import Probe, registered
from induction_memory.source.sources import Selection
from induction_memory.task.protocol import offered

FAMILIES: dict[str, ModuleType] = {
    "recall": memory_recall,
    "weights": weight_size,
    "composition": composition,
    "attention": attention,
    "prediction": prediction,
    "attribution": attribution,
}
"""Each has `PROBES`, and `named` for names with a number that is not listed: a layer, a window or an occurrence."""

OF_TASK: dict[str, Callable[[Selection], list[Probe]]] = {
    "predictors": predictors.of_predictors,
    "sources": predictors.of_sources,
}
"""Families whose members depend on the task: its predictors, its sources."""
PATTERNS = {
    "kl_to_<predictor>": "mean over counted positions of KL(predictor || model), for a predictor of the task",
    "mass_on_<role><layer>": "mean attention of the main group's queries to a source of the task, such as the parent",
    "loss_<group>, accuracy_<group>": "over the positions of a group of the task",
}
"""Names that depend on the task -> what they measure."""

Names = str | Callable[[Any], Any] | Iterable[str | Callable[[Any], Any]] | None


def names() -> dict[str, str]:
    """Every probe's name with one line on what it measures.

    >>> import induction_memory as im
    >>> im.probes.names()["W_O2"]
    'w_U(j)^T W_O2 W_V2 w_E(k) -> j = k; recall: share of items that choose their target'
    """
    listed = [probe for family in FAMILIES.values() for probe in family.PROBES.values()]
    return {probe.name: probe.about for probe in [*listed, *registered.values()]}


def built_in(name: str) -> Probe | None:
    """The package's probe of this name."""
    for family in FAMILIES.values():
        found = family.PROBES.get(name) or family.named(name)
        if found is not None:
            return found
    return predictors.named(name)


def find(name: str) -> Probe:
    """The probe of this name, registered or built in."""
    found = registered.get(name) or built_in(name)
    if found is None:
        close = get_close_matches(name, [*names(), *FAMILIES, *OF_TASK], n=3)
        hint = f" (like {', '.join(close)})" if close else ""
        families = ", ".join([*FAMILIES, *OF_TASK, "all"])
        raise InputError(f"probe: expected a probe{hint} or a family ({families}), got {name!r}")
    return found


def resolve(wanted: Names, source: Selection) -> list[Probe]:
    """The wanted probes in order, with families replaced by their members, each probe once.

    None means the paper's recalls; for a task without such memories the distances to the task's predictors, and for a
    task without predictors loss and accuracy.
    """
    if wanted is None:
        return _by_default(source)
    listed = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    require(bool(listed), "probes", "at least one", repr(wanted))
    chosen: dict[str, Probe] = {}
    for item in listed:
        for probe in _meant(item, source):
            same = chosen.setdefault(probe.name, probe)
            require(same.measure == probe.measure, "probes", "one function per name", f"two called {probe.name!r}")
    return list(chosen.values())


def _by_default(source: Selection) -> list[Probe]:
    if has_memories(source):
        return list(map(find, memory_recall.PAPER))
    assert source.task is not None
    if offered(source.task, "predictors") is None:
        return _meant("prediction", source)
    return OF_TASK["predictors"](source)


def has_memories(source: Selection) -> bool:
    """Whether the task, if it is known, says what the matrices of an induction head would store."""
    if source.task is None:
        return True
    stored = offered(source.task, "associations") or {}
    return not memory_recall.TABLE.keys().isdisjoint(stored)


def _meant(item: object, source: Selection) -> list[Probe]:
    """The probes that a name, a family or a function stands for."""
    if isinstance(item, str):
        if item == "all":
            every = [probe for family in FAMILIES for probe in _meant(family, source)]
            of_task = [] if source.task is None else [p for family in OF_TASK.values() for p in family(source)]
            return [*every, *of_task, *registered.values()]
        if item in OF_TASK:
            return OF_TASK[item](source)
        if item == "prediction":
            return [*prediction.PROBES.values(), *prediction.of_groups(source)]
        if item in FAMILIES:
            return list(FAMILIES[item].PROBES.values())
        own = [probe for probe in registered.values() if probe.family == item]
        if not own and item.startswith(("loss_", "accuracy_")) and built_in(item) is None:
            own = [probe for probe in prediction.of_groups(source) if probe.name == item]
        return own or [find(item)]
    if not callable(item):
        raise InputError(f"probes: expected names of probes or of families, or functions, got {item!r}")
    for probe in registered.values():
        if probe.measure is item:
            return [probe]
    name = getattr(item, "__name__", "")
    if built_in(name) is not None:
        raise InputError(f"probes: expected a function whose name is not that of a probe, got {name!r}")
    return [Probe(name or repr(item), (item.__doc__ or "").split("\n")[0], item)]
