"""The routes by which a head can have an effect, named after the readers of its output.

q, k, v  the queries (keys, values) of later heads
ff       the feed-forwards before the last layer's
out      the output, and the last layer's feed-forward
"""

from induction_memory.runner.components import Graph

ROUTES = ("out", "ff", "q", "k", "v")


def edges(graph: Graph, head: str, route: str) -> list[str]:
    """The edges by which a head reaches the readers of a route."""
    if route in ("q", "k", "v"):
        readers = [name for name in graph.inputs if name.endswith(f".{route}")]
    elif route == "ff":
        readers = [f"FF{layer}" for layer in graph.feed_forwards if layer < graph.n_layers]
    else:
        readers = [f"FF{graph.n_layers}"] if graph.n_layers in graph.feed_forwards else []
        readers.append("out")
    return [f"{head}->{name}" for name in readers if head in graph.writers_before(name)]
