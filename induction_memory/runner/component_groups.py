"""The components that a caller names, one by one or in groups: checked against a graph, without a model."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from induction_memory.errors import require
from induction_memory.runner.components import Graph

GROUPS = ("heads", "layers", "feed_forward", "embeddings", "matrices", "parts", "edges", "paths")


def component_names(
    graph: Graph, heads: Literal["all"] | Sequence[Any] | None, components: str | Sequence[str] | None
) -> list[str]:
    """The wanted names in the order given, each once, with groups replaced by their members and every name checked."""
    if heads is None and components is None:
        components = "all"
    names: list[str] = []
    if heads is not None:
        names += graph.heads if isinstance(heads, str) and heads == "all" else map(graph.head, listed(heads, "heads"))
    for name in [] if components is None else listed(components, "components"):
        require(isinstance(name, str), "components", "names", repr(name))
        names += _group(graph, name) if name in (*GROUPS, "all") else [name]
    for name in names:
        graph.resolve(name)
    require(len(names) > 0, "components", "at least one", "none")
    return list(dict.fromkeys(names))


def _group(graph: Graph, name: str) -> Iterable[str]:
    groups: dict[str, Iterable[str]] = {
        "heads": graph.heads,
        "layers": [f"L{layer}" for layer in range(1, graph.n_layers + 1)] if graph.n_heads > 1 else [],
        "feed_forward": [f"FF{layer}" for layer in graph.feed_forwards],
        "embeddings": ["embed", "pos"] if graph.positions else ["embed"],
        "matrices": graph.matrices,
        "parts": graph.parts,
        "edges": graph.edges,
        "paths": graph.paths,
    }
    if name != "all":
        return groups[name]
    return [component for group in GROUPS[:6] for component in groups[group]]


def listed(names: Any, field: str) -> Sequence[Any]:
    """One name or function as a list of one; an empty list is refused."""
    if isinstance(names, str) or callable(names):
        return [names]
    several = isinstance(names, Sequence) and len(names) > 0
    require(several, field, "a name, or a list of one or more", repr(names))
    return list(names)
