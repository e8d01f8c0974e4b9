"""Heads of several layers as leading axes: step, then one head axis per layer that takes part.

The keys of W_K2 are written by a head of layer 1 and read by a head of layer 2, so its table of scores has both axes:
[step, earlier head, head, query, key]. A matrix has its heads at the place of its own layer and ones elsewhere.
"""

import re

from jaxtyping import Float
from torch import Tensor

from induction_memory.model.memories import Memories


def layers_of(*names: str) -> tuple[int, ...]:
    """The layers whose head axes the named matrices and embeddings have, in order; W_F has none."""
    found = {int(n) for name in names for n in re.findall(r"(?:W_[KVO]|Phi_)(\d+)", name)}
    return tuple(sorted(found))


def spread(
    X: Float[Tensor, "step head a b"], layers: tuple[int, ...], layer: int | None = None
) -> Float[Tensor, "step *heads a b"]:
    """X with its head axis at the place of `layer` among `layers`; without a `layer`, X has no head axis."""
    return X.reshape(X.shape[0], *[X.shape[1] if at == layer else 1 for at in layers], *X.shape[-2:])


def matrix(m: Memories, name: str, layers: tuple[int, ...], *, fold: bool = True) -> Float[Tensor, "step *heads a b"]:
    """A matrix of `Memories.memory` along these layers' heads."""
    return spread(m.memory(name, fold=fold), layers, next(iter(layers_of(name)), None))


def rows(m: Memories, name: str, layers: tuple[int, ...], *, fold: bool = True) -> Float[Tensor, "step *heads n d"]:
    """Rows of embeddings along these layers' heads, each remap by the heads of its own layer: `W_V2 Phi_1 w_E`."""
    *remaps, of = name.split(" ")

    def compute() -> Tensor:
        vectors = spread(m.embedding(of, fold=fold), layers)
        for remap in reversed(remaps):
            vectors = vectors @ matrix(m, remap, layers, fold=fold).mT
        return vectors

    return m.once(f"{name} along {layers}, fold {fold}", compute)


def normed_rows(m: Memories, name: str, layers: tuple[int, ...]) -> Float[Tensor, "step *heads n d"]:
    """Rows as in `rows`, with the LayerNorm of each layer applied in full to the vectors that the layer reads."""
    *remaps, of = name.split(" ")
    vectors = spread(m.embedding(of, fold=False), layers)
    for remap in reversed(remaps):
        vectors = m.normed(f"blocks.{layers_of(remap)[0] - 1}.ln1", vectors)
        vectors = vectors @ matrix(m, remap, layers, fold=False).mT
    return vectors
