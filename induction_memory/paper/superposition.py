"""Which embeddings are in superposition on the residual stream (Figure 1).

In a transformer of one head per layer without LayerNorm and without a feed-forward before its last layer, the residual
stream of position t is a sum of embeddings with coefficients that attention a^l determines:

    layer 0     w_E(z_t) + p_t
    layer 1     this, and  sum_s a^1_ts (Phi_1 w_E(z_s) + Phi_1 p_s)
    layer 2     this, and  Phi_2 of everything on layer 1 of position s, with a^2_ts

A row of the table is one embedding on one stream: w_E(a), p(3), w_1(a) = Phi_1 w_E(a), w_1(p 3), w_2(a) = Phi_2 w_E(a),
w_2(w_1(a)) ... with its coefficient. Nothing is fitted: `residual` sums the rows, and a test compares the sum with the
model's stream. A feed-forward of the last layer also adds to layer 2 and is left out.
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

COLUMNS = ["layer", "position", "embedding", "coefficient"]
Atom = tuple[str, int, tuple[int, ...]]
"""w_E or p, the token or position, and the layers whose Phi were applied, in order."""


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
    hooked: Any = model
    config = hooked.cfg
    found = f"{config.n_heads} heads, {config.normalization_type or 'no'} LayerNorm"
    require(config.n_heads == 1 and config.normalization_type is None, "model", "one head and no LayerNorm", found)
    early = [i + 1 for i, block in enumerate(hooked.blocks[:-1]) if not _is_empty(getattr(block, "mlp", None))]
    require(not early, "model", "no feed-forward before the last layer", f"one in layer {early}")
    with torch.no_grad():
        _, cache = hooked.run_with_cache(tokens.unsqueeze(0), names_filter=lambda name: name.endswith("hook_pattern"))
    return [cache[f"blocks.{i}.attn.hook_pattern"][0, 0] for i in range(config.n_layers)]


def _is_empty(feed_forward: nn.Module | None) -> bool:
    from induction_memory.model.building import NoFeedForward

    return feed_forward is None or isinstance(feed_forward, NoFeedForward)


def _streams(model: nn.Module, tokens: Int[Tensor, " pos"]) -> list[list[dict[Atom, float]]]:
    """Per layer, from 0 on, and position: atom -> coefficient."""
    now: list[dict[Atom, float]] = [{("w_E", int(k), ()): 1.0, ("p", t, ()): 1.0} for t, k in enumerate(tokens)]
    found = [now]
    for number, pattern in enumerate(attention_of(model, tokens), 1):
        after = []
        for t, stream in enumerate(now):
            sums: defaultdict[Atom, float] = defaultdict(float, stream)
            for s in range(t + 1):
                for (kind, which, through), value in now[s].items():
                    sums[kind, which, (*through, number)] += float(pattern[t, s]) * value
            after.append(dict(sums))
        now = after
        found.append(now)
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
