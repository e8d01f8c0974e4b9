"""`presets`: the experiments that `train` knows by name."""

import json
import re
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from induction_memory.cli.arguments import optional
from induction_memory.field_docs import field_meanings

if TYPE_CHECKING:
    from induction_memory.experiment.presets import Preset

WIDTH = 80
NAMES = 28
STEP_SIZE = re.compile(r"(figure-8-d\d+)-eta([\d.]+)")


def presets(
    name: Annotated[str | None, tyro.conf.Positional, optional("[NAME]", str)] = None,
    /,
    format: Literal["text", "json"] = "text",
) -> None:
    """List the experiments by figure, or explain every field of one experiment.

    Args:
        name: the experiment to show in full, or a figure such as figure-4, whose experiments are listed.
        format: text, or one JSON document.
    """
    from induction_memory.experiment.presets import PRESETS, names, preset

    figure = name if name not in PRESETS and re.fullmatch(r"figure-\d+", name or "") else None
    of_figure = {key: entry for key, entry in PRESETS.items() if key.startswith(f"{figure}-")}
    if of_figure and format == "text":
        print(grouped(of_figure))
    elif name is not None:
        entry = preset(name)
        document = {"about": entry.about} | entry.config.to_dict()
        print(json.dumps(document, indent=2) if format == "json" else explained(name, entry))
    elif format == "json":
        print(json.dumps(names(), indent=2))
    else:
        print(grouped(PRESETS))


def grouped(entries: "dict[str, Preset]") -> str:
    """One paragraph per figure; Figure 8 has one line per dimension with all its step sizes."""
    sizes: dict[str, list[str]] = {}
    for match in filter(None, map(STEP_SIZE.fullmatch, entries)):
        sizes.setdefault(match[1], []).append(match[2])
    lines: dict[int, list[str]] = {}
    for key, entry in entries.items():
        if STEP_SIZE.fullmatch(key) or (key in sizes and key != min(sizes, key=list(entries).index)):
            continue
        figure = re.match(r"figure-(\d+)", key)
        shown, about = (key, entry.about) if key not in sizes else _dimensions(sizes)
        lines.setdefault(int(figure[1]) if figure else 0, []).append(_entry(shown, about))
    headings = {n: f"Figure {n}" if n else "Beyond the figures" for n in sorted(lines)}
    return "\n\n".join("\n".join([heading, *lines[n]]) for n, heading in headings.items())


def explained(name: str, entry: "Preset") -> str:
    """Each field of an experiment: its value, and what it means."""
    lines = [f"{name}: {entry.about}"]
    for part in fields(entry.config):
        config = getattr(entry.config, part.name)
        meanings = field_meanings(type(config))
        lines.append("")
        for found in fields(config):
            setting = f"{part.name}.{found.name} = {_value(getattr(config, found.name))}"
            lines += textwrap.wrap(setting, WIDTH, subsequent_indent="  ")
            lines += textwrap.wrap(meanings.get(found.name, ""), WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _dimensions(sizes: dict[str, list[str]]) -> tuple[str, str]:
    dimensions = ", ".join(key.rpartition("-d")[2] for key in sizes)
    tried = ", ".join(sorted({size for found in sizes.values() for size in found}, key=float))
    fewer = [key.rpartition("-d")[2] for key, found in sizes.items() if len(found) < max(map(len, sizes.values()))]
    but = f" (the largest not for d = {', '.join(fewer)})" if fewer else ""
    return (
        "figure-8-d<D>[-eta<E>]",
        f"W_O2 alone at d = D out of {dimensions}, with the step size of Figure 3 or E out of {tried}{but}",
    )


def _entry(key: str, about: str) -> str:
    """A name and its description; a name that is too long for its column has its own line."""
    indent = " " * (NAMES + 2)
    first = [f"  {key}"] if len(key) >= NAMES else []
    text = textwrap.wrap(
        about, WIDTH, initial_indent=indent if first else f"  {key:<{NAMES}}", subsequent_indent=indent
    )
    return "\n".join(first + text)


def _value(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, (list, tuple)) else str(value)
