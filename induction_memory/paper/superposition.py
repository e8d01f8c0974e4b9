"""Which embeddings stand in superposition on the residual stream (Figure 1).

In a transformer of one head per layer without LayerNorm and without a feed-forward before its last layer, the residual
stream of position t is a sum of embeddings with coefficients that attention a^l determines:

    layer 0     w_E(z_t) + p_t
    layer 1     that, and  sum_s a^1_ts (Phi_1 w_E(z_s) + Phi_1 p_s)
    layer 2     that, and  Phi_2 of everything on layer 1 of position s, with a^2_ts

A row of the table is one embedding on one stream: w_E(a), p(3), w_1(a) = Phi_1 w_E(a), w_1(p 3), w_2(a) = Phi_2 w_E(a),
w_2(w_1(a)) ... with its coefficient: the weight of its paths (`probes/why.py`). Nothing is fitted: `residual` adds the
rows up again, and a test compares the sum with the stream that the model computes. A feed-forward of the last layer
adds to layer 2 and is left out here.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from induction_memory.errors import require
from induction_memory.model.memories import embedding, matrix
from induction_memory.probes.activations import Activations
from induction_memory.probes.why import Streams
from induction_memory.runner.components import layer_of
from induction_memory.source.sources import select
from induction_memory.task.batch import Batch

COLUMNS = ["layer", "position", "embedding", "coefficient"]
Atom = tuple[str, int, tuple[int, ...]]
"""w_E or p, which token or position, and the layers whose Phi it went through, in that order."""


def superposition(
    model: nn.Module, tokens: Int[Tensor, " pos"], *, names: Sequence[str] | None = None, least: float = 0.0
) -> pd.DataFrame:
    """Every embedding on the residual stream of each position after each layer, and its coefficient.

    `names` are the tokens' names (numbers by default). Rows with coefficients below `least` are left out.

    >>> import torch, induction_memory as im
    >>> run = im.load("induction-small")
    >>> table = superposition(run.model(), torch.tensor([1, 2, 1]), least=0.9)
    >>> table.loc[(table["layer"] == 1) & (table["position"] == 1), "embedding"].tolist()
    ['w_E(2)', 'p(1)', 'w_1(1)', 'w_1(p 0)']
    """
    rows = []
    for layer, streams in enumerate(_streams(model, tokens)):
        for position, stream in enumerate(streams):
            kept = [(_name(atom, names), value) for atom, value in stream.items() if value >= least]
            rows += [(layer, position, name, value) for name, value in kept]
    return pd.DataFrame(rows, columns=COLUMNS)


def residual(model: nn.Module, tokens: Int[Tensor, " pos"], layer: int) -> Float[Tensor, "pos d_model"]:
    """The stream after a layer (0: before the first), added up from its embeddings and coefficients."""
    vectors = {name: embedding(model, name, fold=False) for name in ("w_E", "p")}
    Phi = {number: matrix(model, f"Phi_{number}", fold=False) for number in range(1, layer + 1)}

    def vector(atom: Atom) -> Float[Tensor, " d_model"]:
        x = vectors[atom[0]][atom[1]]
        for number in atom[2]:
            x = Phi[number] @ x
        return x

    streams = _streams(model, tokens)[layer]
    return torch.stack([torch.stack([v * vector(atom) for atom, v in stream.items()]).sum(0) for stream in streams])


def attention_of(model: nn.Module, tokens: Int[Tensor, " pos"]) -> list[Float[Tensor, "query key"]]:
    """The attention of each layer's one head."""
    streams = _of(model, tokens)
    return [streams.pattern(head) for head in streams.graph.heads]


def _of(model: nn.Module, tokens: Int[Tensor, " pos"]) -> Streams:
    config: Any = model.cfg
    found = f"{config.n_heads} heads, {config.normalization_type or 'no'} LayerNorm"
    require(config.n_heads == 1 and config.normalization_type is None, "model", "one head and no LayerNorm", found)
    everywhere = torch.ones(1, len(tokens), dtype=torch.bool)
    batch = Batch(tokens[None].long(), tokens[None].long(), everywhere, {"all": everywhere}, "all")
    streams = Streams(Activations(select(model, batch=batch).at()))
    early = [w for w in streams.graph.writers_before(streams.graph.heads[-1] + ".q") if w.startswith("FF")]
    require(not early, "model", "no feed-forward before the last layer", f"one in layer {[int(w[2:]) for w in early]}")
    return streams


def _streams(model: nn.Module, tokens: Int[Tensor, " pos"]) -> list[list[dict[Atom, float]]]:
    """Per layer, from 0 on, and position: atom -> coefficient."""
    streams, layers = _of(model, tokens), range(1, len(model.blocks) + 1)  # pyright: ignore
    readers = [*(f"L{layer}H1.q" for layer in layers), "out"]
    at, nothing = torch.arange(len(tokens)), torch.zeros(len(tokens), 1, streams.part("embed").shape[-1])
    found = []
    for reader in readers:
        sums = [defaultdict[Atom, float](float) for _ in tokens]
        leaves = streams.expand(reader, nothing, torch.ones(len(tokens), 1), at, depth=len(layers))
        for leaf in leaves:
            if leaf.part not in ("embed", "pos") or any(one[0] == "F" for one in leaf.path):
                continue
            through = tuple(layer_of(head) for head in reversed(leaf.path))
            for t, weights in enumerate(leaf.weight.tolist()):
                for s, value in enumerate(weights[: t + 1]) if leaf.path else [(t, weights[0])]:
                    which = int(tokens[s]) if leaf.part == "embed" else s
                    sums[t]["w_E" if leaf.part == "embed" else "p", which, through] += value
        found.append([dict(one) for one in sums])
    return found


def _name(atom: Atom, names: Sequence[str] | None) -> str:
    kind, which, through = atom
    token = str(which) if names is None else names[which]
    inner = token if kind == "w_E" else f"p {which}"
    if not through:
        return f"w_E({token})" if kind == "w_E" else f"p({which})"
    for number in through:
        inner = f"w_{number}({inner})"
    return inner
