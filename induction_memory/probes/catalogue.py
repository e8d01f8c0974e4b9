"""All probes by name: the package's families, and what users have registered."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from induction_memory.errors import InputError, require
from induction_memory.probes import attention, composition, logit_attribution, memory_recall, prediction, weight_size
from induction_memory.probes.registry import Probe, registered

FAMILIES: dict[str, ModuleType] = {
    "recall": memory_recall,
    "weights": weight_size,
    "composition": composition,
    "attention": attention,
    "prediction": prediction,
    "attribution": logit_attribution,
}
"""Each has its `PROBES`, and `named` for names with a number that is not listed: a layer, a window, an occurrence."""

Names = str | Callable[[Any], Any] | Iterable[str | Callable[[Any], Any]] | None


def names() -> dict[str, str]:
    """Every probe's name with one line on what it measures."""
    listed = [probe for family in FAMILIES.values() for probe in family.PROBES.values()]
    return {probe.name: probe.about for probe in [*listed, *registered.values()]}


def built_in(name: str) -> Probe | None:
    """The package's probe of this name."""
    for family in FAMILIES.values():
        found = family.PROBES.get(name) or family.named(name)
        if found is not None:
            return found
    return None


def find(name: str) -> Probe:
    """The probe of this name, registered or built in."""
    found = registered.get(name) or built_in(name)
    if found is None:
        close = get_close_matches(name, [*names(), *FAMILIES], n=3)
        hint = f" (like {', '.join(close)})" if close else ""
        raise InputError(f"probe: expected a probe{hint} or a family ({', '.join(FAMILIES)}, all), got {name!r}")
    return found


def resolve(wanted: Names) -> list[Probe]:
    """Probes in order, families written out, none twice; None for the paper's recalls."""
    if wanted is None:
        return [find(name) for name in memory_recall.PAPER]
    listed = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Iterable) else list(wanted)
    require(bool(listed), "probes", "at least one", repr(wanted))
    chosen: dict[str, Probe] = {}
    for item in listed:
        for probe in _meant(item):
            same = chosen.setdefault(probe.name, probe)
            require(same.measure == probe.measure, "probes", "one function per name", f"two called {probe.name!r}")
    return list(chosen.values())


def _meant(item: object) -> list[Probe]:
    """The probes that a name, a family or a function stands for."""
    if isinstance(item, str):
        if item == "all":
            return [probe for family in FAMILIES.values() for probe in family.PROBES.values()] + [*registered.values()]
        if item in FAMILIES:
            return list(FAMILIES[item].PROBES.values())
        own = [probe for probe in registered.values() if probe.family == item]
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
